"""Serves an ASGI application with uvicorn or hypercorn on a free port, and prints its address.
Connections that are idle for a second are closed."""

import asyncio
import signal
import socket
import sys

KEEP_ALIVE = 1  # s


def serve(app, server="uvicorn", certificate=None, key=None):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    if server == "uvicorn":
        import uvicorn

        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        sys.exit(uvicorn.Server(config).run(sockets=[listener]))
    if server != "hypercorn":
        sys.exit(f"{server}: neither uvicorn nor hypercorn")
    import hypercorn.asyncio
    import hypercorn.config

    config = hypercorn.config.Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.loglevel = "ERROR"
    config.certfile, config.keyfile = certificate, key
    config.keep_alive_timeout = KEEP_ALIVE

    async def run():
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await hypercorn.asyncio.serve(app, config, shutdown_trigger=stopped.wait)

    asyncio.run(run())
