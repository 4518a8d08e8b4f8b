-- Twin of src/algorithm/token_bucket.rs: used - phase/period tokens are missing. A state: at, used, phase.

local function token_bucket()
  -- The bucket as it is at `now`: the time, used, phase. A phase of another period is dropped.
  local function bucket_at(rule, now, at, used, phase)
    local time = now > at and now or at
    if used == 0 then return time, 0, 0 end
    if phase >= rule.period then phase = 0 end
    local refilled, rest = multiply_divide(rule.units, time - at, phase, rule.period)
    if refilled >= used then return time, 0, 0 end
    return time, used - refilled, rest
  end

  -- When `tokens` more have been refilled.
  local function refilled_at(rule, at, phase, tokens)
    if tokens == 0 then return 0 end
    return later(at, multiply_divide_up(tokens - 1, rule.period, rule.period - phase, rule.units))
  end

  -- The bucket, told from the latest instant a token's refill began.
  local function told(rule, at, used, phase)
    local rest = phase % rule.units
    return less(at, (phase - rest) / rule.units), used, rest
  end

  return {
    tag = 98, -- 'b'

    look = function(rule, now, cost, at, used, phase)
      at, used, phase = bucket_at(rule, now, at, used, phase)
      local burst, whole = rule.burst, refilled_at(rule, at, phase, used)
      local left = burst > used and burst - used or 0
      if cost <= left then return left, whole, refilled_at(rule, at, phase, used + cost), told(rule, at, used + cost, phase) end
      return left, whole, cost <= burst and refilled_at(rule, at, phase, used - (burst - cost)) or nil
    end,

    -- What of the inflow is kept out of the bucket while units are held.
    kept_out = function(rule, now, hold, share, at, used, phase)
      at, used, phase = bucket_at(rule, now, at, used, phase)
      local inflow, half = multiply_divide_up(hold, rule.units, phase, rule.period), (share - share % 2) / 2
      local most = less(inflow, used)
      return most < half and most or half
    end,

    release = function(rule, now, cost, charged_at, at, used, phase)
      at, used, phase = bucket_at(rule, now, at, used, phase)
      -- Nothing of a charge is left after a full bucket's refill.
      if at >= later(charged_at, multiply_divide_up(rule.burst, rule.period, 0, rule.units)) then return end
      if cost < used then return told(rule, at, used - cost, phase) end
      return 0, 0, 0
    end,
  }
end
