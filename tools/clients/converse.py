#!/usr/bin/env python3
"""Clients that people use, unchanged, in a conversation with a server each: tools/clients.sh starts it and installs them.

Usage: converse.py URL [FOLDER]: with it, what they send is written there, a file each (tests/data/server).
"""
import pathlib
import sys

import langchain_client
import llamaindex_client
import openai_client
from record import Recorder

for name, client in ("openai", openai_client), ("langchain", langchain_client), ("llamaindex", llamaindex_client):
    recorder = Recorder(sys.argv[1])
    print(name)
    version = client.converse(recorder.base_url, recorder.step)
    if len(sys.argv) > 2:
        recorder.write(pathlib.Path(sys.argv[2]) / f"{name}.jsonl")
    print(f"{version}: {len(recorder.requests)} requests, as expected")
