"""A client of the Model Context Protocol: starts a server, makes requests, prints each answer as a line of JSON.

mcp_client.py REQUESTS PROGRAM ARGUMENT...

REQUESTS is a JSON list: {"list": true}, or {"call": TOOL, "arguments": {...}}. With "cancel": true a call is
cancelled as soon as its progress is reported.
"""

import json
import sys

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def call(session, request):
    reported = []
    scope = anyio.CancelScope()

    async def on_progress(progress, total, message):
        reported.append({"progress": progress, "message": message})
        if request.get("cancel"):
            scope.cancel()

    with scope:
        result = await session.call_tool(
            request["call"], request.get("arguments", {}), progress_callback=on_progress
        )
        answer = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"answer": answer, "reported": reported}
    return {"cancelled": True, "reported": reported}


async def main():
    requests = json.loads(sys.argv[1])
    server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        info = await session.initialize()
        print(json.dumps(info.model_dump(mode="json", by_alias=True, exclude_none=True)), flush=True)
        for request in requests:
            if "list" in request:
                listed = await session.list_tools()
                answer = listed.model_dump(mode="json", by_alias=True, exclude_none=True)
            else:
                answer = await call(session, request)
            print(json.dumps(answer), flush=True)


anyio.run(main)
