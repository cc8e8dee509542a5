"""The ``sglang-gemma4`` command. Each subcommand imports what it needs and nothing before."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from sglang_gemma4 import terminal
from sglang_gemma4.benchmark.command import add_command as add_bench
from sglang_gemma4.benchmark.tune_moe import add_command as add_tune_moe
from sglang_gemma4.diagnostics.dashboard import add_command as add_dashboard
from sglang_gemma4.diagnostics.flag_table import add_command as add_flags
from sglang_gemma4.disaggregation.plan_table import add_command as add_transfer_plan
from sglang_gemma4.memory.capacity_table import add_command as add_capacity
from sglang_gemma4.patching.supported import versions_line
from sglang_gemma4.quality.command import add_commands as add_quality
from sglang_gemma4.tiny.convert import add_command as add_quantize
from sglang_gemma4.tiny.quantisation import FORMATS


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; its exit status. Errors a user can mend are one line on stderr and status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    flags: list[str] = []
    if words[:1] == ["bench"] and "--" in words:  # argparse takes what follows -- for more positionals, wherever MODEL stands
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    if words[:1] == ["flags"]:  # a flag may be written as the server's command line has it
        words = [word if word in ("--markdown", "--help") else word.removeprefix("--") for word in words]
    arguments = _parser().parse_args(words)
    arguments.server_flags = flags
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads has read enough, as `| head` does; nothing is left to flush at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, FileExistsError, OSError) as error:
        print(f"sglang-gemma4: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sglang-gemma4: interrupted", file=sys.stderr)
        return 130


class _Version(argparse.Action):
    """One line whatever the terminal's width, and the end."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        print(versions_line())
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang-gemma4", description="Gemma 4 on SGLang, patched, checked and explained.")
    parser.add_argument("--version", action=_Version, nargs=0, help="this package's version and SGLang's, and whether anything is applied")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="start a server: launch_server on a GPU, the CPU reference engine without one",
        description="MODEL is a checkpoint directory, a Hugging Face name or a shipped tiny model; "
        "all other flags go to sglang.launch_server.",
    )
    serve.add_argument("model", metavar="MODEL")
    serve.add_argument("flags", nargs=argparse.REMAINDER, metavar="...", help="any flag of sglang.launch_server")
    serve.set_defaults(run=_serve)

    doctor = commands.add_parser("doctor", help="versions, GPU, switches and each patch's state, here or on a live server")
    doctor.add_argument("--url", help="read a live server instead, for example http://127.0.0.1:30000")
    doctor.add_argument("--api-key", help="key of a server started with --api-key")
    doctor.add_argument("--no-patches", action="store_true", help="skip the patch check, which imports SGLang (up to a minute)")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)
    topics = doctor.add_subparsers(metavar="[dump FILE]")
    dump = topics.add_parser("dump", help="explain a dump of SGLANG_GEMMA4_DEBUG: which index was illegal, and why it may be")
    dump.add_argument("file", metavar="FILE", help="an sglang-gemma4-trap-*.npz")
    dump.set_defaults(run=_dump)

    patches = commands.add_parser("patches", help="every switch and the patches behind it, or all of one patch")
    patches.add_argument(
        "name", nargs="?", metavar="NAME", help="a patch: what it changes, why, on what evidence, and whether it is on here"
    )
    patches.add_argument("--json", action="store_true", help="print JSON (of the list, --by-target or --against)")
    patches.add_argument("--diff", action="store_true", help="with --against: print each changed function's diff")
    form = patches.add_mutually_exclusive_group()
    form.add_argument("--by-target", action="store_true", help="SGLang's files and functions, each with what goes in there")
    form.add_argument(
        "--against",
        metavar="FOLDER_OR_VERSION",
        help="what another SGLang (folder, wheel, source archive or version) has for each target; reads its source without an import",
    )
    form.add_argument("--markdown", action="store_true", help="print the tables of docs/switches.md")
    form.add_argument("--fingerprints", action="store_true", help="compare each hook's fingerprint with the installed SGLang (imports it)")
    form.add_argument("--sources", action="store_true", help="print known_sources.json for the installed SGLang (imports it)")
    patches.set_defaults(run=_patches)

    checkpoint = commands.add_parser("checkpoint", help="write a tiny trained model, or a config of a real size")
    checkpoint.add_argument(
        "name", metavar="NAME", help="tiny-26b-a4b, tiny-e2b, tiny-31b, tiny-12b; with --random: e2b, e4b, 12b, 26b-a4b, 31b"
    )
    checkpoint.add_argument("path", metavar="PATH", help="directory to write; the assistant goes to PATH-assistant")
    checkpoint.add_argument("--random", action="store_true", help="config only, for --load-format dummy: no weights are written")
    checkpoint.add_argument("--quantization", metavar="FORMAT", help=f"quantise the model: {', '.join(FORMATS)}")
    checkpoint.set_defaults(run=_checkpoint)
    add_quantize(commands)
    add_bench(commands)
    add_tune_moe(commands)
    add_quality(commands)
    add_dashboard(commands)
    add_flags(commands)
    add_capacity(commands)
    add_transfer_plan(commands)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.serving.launch import serve

    return serve(arguments.model, arguments.flags)


def _doctor(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.diagnostics import doctor

    limit = terminal.width()
    if arguments.url:
        data = doctor.live(arguments.url, arguments.api_key)
        print(json.dumps(data, indent=2) if arguments.json else doctor.live_text(data, limit))
        return 0 if data["healthy"] else 1
    data = doctor.installation()
    if not arguments.json:
        print(doctor.installation_text(data, limit), flush=True)  # at once: what follows takes its time
    if not arguments.no_patches:
        terminal.say("placing the patches in a process that imports SGLang, some 20 seconds (--no-patches leaves this out)")
        data = doctor.add_patches(data)
    print(json.dumps(data, indent=2) if arguments.json else doctor.patches_text(data, limit))
    return 0 if data["healthy"] else 1


def _dump(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.diagnostics import trap_dump

    print(trap_dump.explain(arguments.file))
    return 0


def _patches(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.diagnostics import listing

    if arguments.json and (arguments.markdown or arguments.fingerprints or arguments.sources):
        raise ValueError("--json goes with the plain list, --by-target or --against; leave it out here")
    if arguments.diff and not arguments.against:
        raise ValueError("--diff goes with --against FOLDER_OR_VERSION; add it or leave --diff out")
    if arguments.by_target or arguments.against:
        return _targets(arguments)
    if arguments.fingerprints:
        text, fits = listing.fingerprints()
        print(text)
        return 0 if fits else 1
    if arguments.sources:
        print(listing.sources())
    elif arguments.json:
        print(json.dumps([row for row in listing.data() if arguments.name in (None, row["name"])], indent=2))
    elif arguments.markdown:
        print(listing.markdown())
    else:
        print(listing.text() if arguments.name is None else listing.one(arguments.name))
    return 0


def _targets(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.diagnostics import targets, upgrade

    if arguments.against:
        found = upgrade.compare(arguments.against, arguments.name)
        print(json.dumps(upgrade.data(found), indent=2) if arguments.json else upgrade.text(found, arguments.diff))
    else:
        print(json.dumps(targets.data(arguments.name), indent=2) if arguments.json else targets.text(arguments.name))
    return 0


def _checkpoint(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.tiny import checkpoints

    for path in checkpoints.write(arguments.name, arguments.path, random=arguments.random, quantised=arguments.quantization):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
