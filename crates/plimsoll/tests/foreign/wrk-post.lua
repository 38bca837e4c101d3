wrk.method = "POST"
wrk.body   = '{"a":1}'
wrk.headers["Content-Type"] = "application/json"
