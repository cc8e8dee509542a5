"""Packaging of sglang-gemma4.

``patches/`` stands at the top of the repository and installs as ``sglang_gemma4.patches``, which in a checkout is a link to it.
SGLang is no dependency of the package, only of its extra ``sglang``: pip must not replace the one that serves.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
INIT = (HERE / "sglang_gemma4" / "__init__.py").read_text()
REPOSITORY = "https://git.example/sglang-gemma4"  # a reserved name: the published address belongs here before an upload
RELATIVE = re.compile(r"""(!?)(\[[^\]\n]*\]\(|<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=")(?!\w+:|#)([^)"\s]+)""")
"""A link or an image of Markdown or HTML whose target is a file of the repository."""


def constant(name: str) -> str:
    """A string constant of the package, read without importing it."""
    found = re.search(rf'^{name} = "(.+)"$', INIT, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{name} not found in sglang_gemma4/__init__.py")
    return found.group(1)


def long_description() -> str:
    """The README as an index shows it, where relative links lead nowhere: they point to this version's files in the repository."""

    def absolute(found: re.Match[str]) -> str:
        image, opening, path = found.groups()
        kind = "raw" if image or opening.startswith(("<img", "<source")) else "blob"
        return f"{image}{opening}{REPOSITORY}/{kind}/v{constant('__version__')}/{path}"

    return RELATIVE.sub(absolute, (HERE / "README.md").read_text())


SGLANG = [f"sglang=={constant('SUPPORTED_SGLANG')}"]
PD = ["nixl==1.5.1", "sglang-router==0.3.2"]  # PD over NIXL behind the router; nixl brings nixl-cu12 and nixl-cu13, which need torch alone
BENCH = ["matplotlib", "pandas"]
EVAL = ["sgl-eval==0.1.3"]  # pinned: its task table and loader are reached below its public functions, which fix the seed

setup(
    name="sglang-gemma4",
    version=constant("__version__"),
    description="Gemma 4 on SGLang: faster, without its known bugs, and every change behind a switch",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="The sglang-gemma4 maintainers",
    url=REPOSITORY,
    project_urls={
        "Source": REPOSITORY,
        "Documentation": f"{REPOSITORY}/blob/v{constant('__version__')}/README.md",
        "Changelog": f"{REPOSITORY}/blob/v{constant('__version__')}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
    license="Apache-2.0",  # of the tiny models too, which the package's own scripts make and train (docs/tiny-models.md)
    license_files=["LICENSE"],
    keywords=["gemma", "gemma-4", "sglang", "llm", "inference", "serving", "speculative-decoding", "triton"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.11",
    packages=[*find_packages(include=["sglang_gemma4", "sglang_gemma4.*"]), "sglang_gemma4.patches"],
    package_dir={"sglang_gemma4.patches": "patches"},
    package_data={
        "sglang_gemma4.benchmark": ["*.jinja"],
        "sglang_gemma4.benchmark.kernels": ["cases.json"],
        "sglang_gemma4.diagnostics": ["dashboard.json", "server_flags.toml"],
        "sglang_gemma4.patching": ["known_sources.json"],
        "sglang_gemma4.kernels.experts": ["moe_tiles/*.json"],
        "sglang_gemma4.speculative": ["*.json"],
        "sglang_gemma4.start": ["lists/*.json.gz"],
        "sglang_gemma4.quality": ["*.toml", "*.yaml"],
        "sglang_gemma4.cpu": ["standin/**/*.py"],
        "sglang_gemma4.tiny": ["checkpoints/**/*", "*.jinja", "*.toml", "train_all.sh"],
    },
    include_package_data=True,
    install_requires=["jsonschema"],  # SGLang imports it too, and does not say so
    extras_require={
        "sglang": SGLANG,
        "test": [
            *SGLANG,
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis",
            "schemathesis",
            "peft",
            "ruff",
            "mypy",
            "uv",
            *BENCH,
            *EVAL,
            *PD,
        ],
        "dev": ["pre-commit"],
        "bench": BENCH,
        "eval": EVAL,
        "pd": PD,
    },
    entry_points={
        "sglang.srt.plugins": ["sglang_gemma4 = sglang_gemma4.plugin:register"],
        "console_scripts": ["sglang-gemma4 = sglang_gemma4.cli:main"],
    },
)
