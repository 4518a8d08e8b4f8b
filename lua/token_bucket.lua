-- Twin of src/algorithm/token_bucket.rs: used - phase/period tokens are missing. A state: at, used, phase.

if algorithm == 4 then
  -- When `tokens` more have been refilled.
  local function refilled_at(at, phase, tokens)
    if tokens == 0 then return 0 end
    local missing = tokens * period - phase
    if missing < 2^53 then
      -- The same without the call, which would be a tenth of a look.
      local rest = missing % units
      if rest > 0 then missing = missing + units end
      at = at + (missing - rest) / units
    else
      at = at + multiply_divide(tokens - 1, period, period - phase, units, true)
    end
    return at < 2^53 and at or 2^53
  end

  looks[i] = function(cost, held, back, charged_at)
    local at, used, phase = unpack_state(98, held) -- 'b'
    local time, refilled = now > at and now or at
    -- A phase of another period is dropped.
    refilled, phase = multiply_divide(units, time - at, phase < period and phase or 0, period)
    if refilled < used then used = used - refilled else used, phase = 0, 0 end
    -- Nothing of a charge is left after a full bucket's refill.
    local returns = back and time < charged_at + multiply_divide(burst, period, 0, units, true) and time < 2^53
    if returns then
      used = used > back and used - back or 0
      if used == 0 then time, phase = 0, 0 end
    end

    local left, whole = burst > used and burst - used or 0, refilled_at(time, phase, used)
    if cost > left then return left, whole, cost <= burst and refilled_at(time, phase, used - (burst - cost)) or nil end
    if cost == 0 and not returns then return left, whole, whole, nil, used, phase end
    -- It is told from the latest instant a token's refill began.
    local rest = phase % units
    local since = (phase - rest) / units
    local state = pack_state(98, time > since and time - since or 0, used + cost, rest)
    return left, whole, refilled_at(time, phase, used + cost), state
  end

  -- What of the inflow is kept out of the bucket while units are held.
  if not plain then
    kept_out[i] = function(hold, share, used, phase)
      local inflow, half = multiply_divide(hold, units, phase, period, true), (share - share % 2) / 2
      local most = inflow > used and inflow - used or 0
      return most < half and most or half
    end
  end
end
