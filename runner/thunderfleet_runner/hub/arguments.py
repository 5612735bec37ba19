"""Options of the commands ``resolve``, ``download`` and ``quantize``, without what they import when they run."""

import argparse
from pathlib import Path

from thunderfleet_crds.exchange.mounts import STAGING_FOLDER, STORE_FOLDER, TOKEN_FOLDER
from thunderfleet_lib.host.sandbox import mounted


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """The options of a command: resolve, download or quantize."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--repository", help="repository, as owner/name")
    if command != "quantize":
        where.add_argument("--uri", help="URI of a folder with the model's files and a file SHA256SUMS")
        parser.add_argument("--sha256", help="with --uri: SHA-256 of the file SHA256SUMS")
    parser.add_argument("--token-folder", type=Path, default=mounted(TOKEN_FOLDER), help="folder with the token, if any")
    if command != "download":
        needed = command == "quantize"
        parser.add_argument("--bits", type=int, required=needed, help="bits of each weight when it is quantized")
        parser.add_argument("--group-size", type=int, required=needed, help="weights that share a scale")
    if command == "resolve":
        parser.add_argument("--revision", default="main", help="branch, tag or commit (default: main)")
        return
    parser.add_argument("--commit", required=True, help="full hash of the commit")
    parser.add_argument("--manifest", required=True, help="SHA-256 of the manifest that the commit must have")
    if command == "download":
        parser.add_argument(
            "--files",
            help="numbers of the files to download, such as 0-3,7, counted from 0 in the order of their paths (default: all)",
        )
    parser.add_argument("--store", type=Path, default=mounted(STORE_FOLDER), help="model store of this Mac")
    parser.add_argument("--staging", type=Path, default=mounted(STAGING_FOLDER), help="folder to download to")
