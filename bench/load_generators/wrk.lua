-- Posts the lines of a file in turn: wrk ... -- FILE PATH. Prints what it saw as one JSON line.
local requests, number = {}, 0

function init(args)
  for body in io.lines(args[1]) do
    local headers = { ["Content-Type"] = "application/json" }
    requests[#requests + 1] = wrk.format("POST", args[2], headers, body)
  end
end

function request()
  number = number % #requests + 1
  return requests[number]
end

function done(summary, latency)
  local errors, counts = summary.errors, {}
  for i = 1, #latency do
    local microseconds, count = latency(i)
    counts[i] = string.format("[%d,%d]", microseconds, count)
  end
  print(string.format('{"requests":%d,"microseconds":%d,"errors":%d,"latencies":[%s]}',
    summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    table.concat(counts, ",")))
end
