-- Posts the lines of a file in turn: wrk ... -- FILE PATH [WAIT_MS SEED]. Prints what it saw as one
-- JSON line. With a mean wait a connection waits, exponentially distributed, before each request.
local requests, number = {}, 0

function init(args)
  for body in io.lines(args[1]) do
    local headers = { ["Content-Type"] = "application/json" }
    requests[#requests + 1] = wrk.format("POST", args[2], headers, body)
  end
  if args[3] then
    local mean = tonumber(args[3])
    math.randomseed(tonumber(args[4]))
    delay = function() return math.floor(0.5 - mean * math.log(1 - math.random())) end
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
