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
from sglang_gemma4.tiny.checkpoints import NAMES
from sglang_gemma4.tiny.convert import add_command as add_quantize
from sglang_gemma4.tiny.quantisation import FORMATS


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status. Errors that a user can fix are one line on stderr and status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    flags: list[str] = []
    if words[:1] == ["bench"] and "--" in words:  # argparse takes what follows -- for more positionals, wherever MODEL stands
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    if words[:1] == ["flags"]:  # a flag may be written as the server's command line has it
        words = [word if word in ("--json", "--markdown", "--help") else word.removeprefix("--") for word in words]
    arguments = _parser().parse_args(words)
    arguments.server_flags = flags
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does; nothing is left to flush at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, FileExistsError, OSError) as error:
        print(f"sglang-gemma4: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sglang-gemma4: interrupted", file=sys.stderr)
        return 130


class _Version(argparse.Action):
    """Print the version on one line, whatever the terminal's width, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        print(versions_line())
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglang-gemma4", description="Run, check, measure and explain Gemma 4 on SGLang with this package."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="this package's version and SGLang's, and whether patches are applied")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="start a server: SGLang's on a GPU, the CPU reference engine without one",
        description="Start sglang.launch_server for MODEL. Flags that cannot work with Gemma 4 are refused before anything loads.",
    )
    serve.add_argument("model", metavar="MODEL", help=f"a checkpoint's directory, a Hugging Face name, or a tiny model: {', '.join(NAMES)}")
    serve.add_argument("flags", nargs=argparse.REMAINDER, metavar="...", help="any flags of sglang.launch_server")
    serve.set_defaults(run=_serve)

    doctor = commands.add_parser(
        "doctor",
        help="check this installation, or a running server: versions, GPU, switches, the state of each patch",
        description="Without --url: versions, GPU and switches, then which patches a server would apply here. With --url: the state of "
        "each patch in a running server, which is active, idle, declined, off or failed. The exit status is 1 where something is wrong.",
    )
    doctor.add_argument("--url", metavar="URL", help="the running server, for example http://127.0.0.1:30000")
    doctor.add_argument("--api-key", metavar="KEY", help="the server's --api-key, where it has one")
    doctor.add_argument("--no-patches", action="store_true", help="leave out the patches, for which SGLang is imported (some 20 seconds)")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)
    topics = doctor.add_subparsers(metavar="[dump FILE]")
    dump = topics.add_parser("dump", help="explain a file that SGLANG_GEMMA4_DEBUG wrote: which index was illegal, and likely causes")
    dump.add_argument("file", metavar="FILE", help="a file sglang-gemma4-trap-*.npz")
    dump.set_defaults(run=_dump)

    patches = commands.add_parser("patches", help="list switches and patches, explain one patch, or compare with another SGLang")
    patches.add_argument("name", nargs="?", metavar="NAME", help="one patch: what it changes, why, the evidence, and whether it is on here")
    patches.add_argument("--json", action="store_true", help="print JSON (of the list, NAME, --by-target or --against)")
    patches.add_argument("--diff", action="store_true", help="with --against: print the diff of each changed function")
    form = patches.add_mutually_exclusive_group()
    form.add_argument("--by-target", action="store_true", help="list SGLang's files and functions, each with the patches on it")
    form.add_argument(
        "--against",
        metavar="SGLANG",
        help="compare each patched function with another SGLang: a version, folder, wheel or source archive; nothing is imported",
    )
    form.add_argument("--markdown", action="store_true", help="print the tables of docs/switches.md")
    form.add_argument("--fingerprints", action="store_true", help="compare each patched function with the installed SGLang (imports it)")
    form.add_argument("--sources", action="store_true", help="print known_sources.json for the installed SGLang (imports it)")
    patches.set_defaults(run=_patches)

    checkpoint = commands.add_parser(
        "checkpoint",
        help="write a tiny trained model, or the config of a real size for random weights",
        description="Write a checkpoint, and its MTP draft to PATH-assistant.",
    )
    real = "with --random: e2b, e4b, 12b, 26b-a4b, 31b"
    checkpoint.add_argument("name", metavar="NAME", help=f"{', '.join(NAMES)}; {real}")
    checkpoint.add_argument("path", metavar="PATH", help="the directory to write")
    checkpoint.add_argument("--random", action="store_true", help="write a config without weights, for a server's --load-format dummy")
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
        terminal.say("applying the patches in a process that imports SGLang, some 20 seconds (--no-patches leaves this out)")
        data = doctor.add_patches(data)
    print(json.dumps(data, indent=2) if arguments.json else doctor.patches_text(data, limit))
    return 0 if data["healthy"] else 1


def _dump(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.diagnostics import trap_dump

    print(trap_dump.explain(arguments.file))
    return 0


def _patches(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.diagnostics import listing

    limit = terminal.width()
    if arguments.json and (arguments.markdown or arguments.fingerprints or arguments.sources):
        raise ValueError("--json goes with the list, NAME, --by-target or --against; leave it out here")
    if arguments.diff and not arguments.against:
        raise ValueError("--diff goes with --against SGLANG; add it or leave --diff out")
    if arguments.by_target or arguments.against:
        return _targets(arguments)
    if arguments.fingerprints or arguments.sources:
        terminal.say("importing SGLang, some 20 seconds")
    if arguments.fingerprints:
        text, fits = listing.fingerprints()
        print(text)
        return 0 if fits else 1
    if arguments.sources:
        print(listing.sources())
    elif arguments.json:
        print(json.dumps(listing.data() if arguments.name is None else listing.one_as_data(arguments.name), indent=2))
    elif arguments.markdown:
        print(listing.markdown())
    else:
        print(listing.text(limit) if arguments.name is None else listing.one(arguments.name, limit))
    return 0


def _targets(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.diagnostics import targets, upgrade

    if arguments.against:
        found = upgrade.compare(arguments.against, arguments.name)
        print(json.dumps(upgrade.data(found), indent=2) if arguments.json else upgrade.text(found, arguments.diff))
    else:
        print(json.dumps(targets.data(arguments.name), indent=2) if arguments.json else targets.text(arguments.name, terminal.width()))
    return 0


def _checkpoint(arguments: argparse.Namespace) -> int:
    from sglang_gemma4.tiny import checkpoints

    for path in checkpoints.write(arguments.name, arguments.path, random=arguments.random, quantised=arguments.quantization):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
