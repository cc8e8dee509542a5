"""A hostile suite: thousands of odd requests on a real server, a bystander beside them, and a heartbeat inside.

``python -m tests.hostile --help`` runs it alone; ``tests/engine/test_hostile.py`` runs it on the server that all tests share.

    exchange.py    one request as bytes, how its client behaves, and what came of it
    plan.py        which request has which number: all of a request follows from a seed and its number
    odd_json.py, odd_schemas.py, odd_media.py, odd_wire.py    our own requests
    samples.py     requests that are known to have ended a server
    from_schema.py schemathesis over the server's own /openapi.json
    runner.py      eight at a time, the bystander, deaths and restarts
    life.py        one start of a server: processes, memory, CPU, load
    costs.py       what one large schema costs
    watched.py     a server with the heartbeat in it
    heartbeat.py   how long a step of the server's event loop takes
    report.py      the checks and the table
"""
