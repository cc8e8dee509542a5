"""Administrative routes end the server: one without a key or a body, or one that asks for what it cannot do. Needs no GPU.

``python crash_repro/admin_routes.py NAME`` asks one of them alone, each of which ends stock's engine.
"""

import asyncio
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

ROUTES = (
    "start_expert_distribution_record",
    "stop_expert_distribution_record",
    "dump_expert_distribution_record",
    "release_memory_occupation",
    "resume_memory_occupation",
    "send_weights_to_remote_instance",
    "update_weights_from_disk",
    "start_profile",
    "slow_down",
)


def main() -> int:
    """What becomes of each, and of a request behind them."""
    named = sys.argv[1:] or list(ROUTES)
    seen = engines.ask(shipped.target("tiny-26b-a4b"), "admin_routes:ask_each", named)
    return int(case.verdict([*(f"{name}: refused" for name in named), "4 tokens"], seen))


def ask_each(engine: Any, names: list[str]) -> list[str]:
    """The client."""

    def outcome(name: str) -> str:
        try:
            found = engine.loop.run_until_complete(asyncio.wait_for(_ask(engine.tokenizer_manager, name), 60))
        except Exception as error:
            print(f"{name}: {error}", flush=True)
            return f"{name}: refused"
        print(f"{name}: {found}", flush=True)
        return f"{name}: {'refused' if isinstance(found, tuple) and found[0] is False else 'done'}"

    found = [outcome(name) for name in names]
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    return [*found, f"{len(engine.generate(input_ids=[2, 300, 301], sampling_params=sampling)['output_ids'])} tokens"]


async def _ask(manager: Any, name: str) -> Any:
    from sglang.srt.managers import io_struct as requests

    given = {
        "release_memory_occupation": lambda: (requests.ReleaseMemoryOccupationReqInput(),),
        "resume_memory_occupation": lambda: (requests.ResumeMemoryOccupationReqInput(),),
        "send_weights_to_remote_instance": lambda: (requests.SendWeightsToRemoteInstanceReqInput(master_address="127.0.0.1", ports="1"),),
        "update_weights_from_disk": lambda: (requests.UpdateWeightFromDiskReqInput(model_path="/nowhere", load_format="none"),),
        "start_profile": lambda: (requests.ProfileReq(output_dir="/proc/nowhere", num_steps=1, activities=["RPD"]),),
        "slow_down": lambda: (requests.SlowDownReqInput(forward_sleep_time=1e300),),
    }
    return await getattr(manager, name)(*given.get(name, tuple)())


if __name__ == "__main__":
    sys.exit(main())
