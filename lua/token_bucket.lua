-- Twin of src/algorithm/token_bucket.rs: used - phase/period tokens are missing. A packed state: 'b', at,
-- used, phase.

local function token_bucket()
  local TAG = 98 -- 'b'
  local kind = {}

  function kind.load(raw, key)
    local at, used, phase = unpack_state(raw, TAG)
    return { kind = kind, key = key, rule = false, at = at or 0, used = used or 0, phase = phase or 0 }
  end

  -- The bucket as it is at `now`: the time, used, phase. A phase of another period is dropped.
  local function bucket_at(state, rule, now)
    local at, phase = latest(now, state.at), state.phase
    if state.used == 0 then return at, 0, 0 end
    if phase >= rule.period then phase = 0 end
    local refilled, rest = multiply_divide(rule.units, at - state.at, phase, rule.period)
    if refilled >= state.used then return at, 0, 0 end
    return at, state.used - refilled, rest
  end

  -- When `tokens` more have been refilled.
  local function refilled_at(rule, at, phase, tokens)
    if tokens == 0 then return 0 end
    return later(at, multiply_divide_up(tokens - 1, rule.period, rule.period - phase, rule.units))
  end

  -- Keeps the bucket, told from the latest instant a token's refill began.
  local function keep(state, rule, at, used, phase)
    local rest = phase % rule.units
    state.at, state.used, state.phase = less(at, (phase - rest) / rule.units), used, rest
  end

  function kind.look(state, rule, now, cost)
    local at, used, phase = bucket_at(state, rule, now)
    local left, whole = less(rule.burst, used), refilled_at(rule, at, phase, used)
    if cost <= left then return left, whole, refilled_at(rule, at, phase, used + cost) end
    return left, whole, cost <= rule.burst and refilled_at(rule, at, phase, used - (rule.burst - cost)) or nil
  end

  function kind.charge(state, rule, now, cost)
    local at, used, phase = bucket_at(state, rule, now)
    keep(state, rule, at, used + cost, phase)
  end

  function kind.lease(state, rule, now, wanted, hold, share)
    local at, used, phase = bucket_at(state, rule, now)
    local kept_out = less(multiply_divide_up(hold, rule.units, phase, rule.period), used)
    local half = (share - share % 2) / 2
    if kept_out > half then kept_out = half end
    local units = wanted < share - kept_out and wanted or share - kept_out
    if units > 0 then keep(state, rule, at, used + units + kept_out, phase) end
    return units
  end

  function kind.release(state, rule, now, cost, charged_at)
    local at, used, phase = bucket_at(state, rule, now)
    -- Nothing of a charge is left after a full bucket's refill.
    if at >= later(charged_at, multiply_divide_up(rule.burst, rule.period, 0, rule.units)) then return end
    if cost < used then
      keep(state, rule, at, used - cost, phase)
    else
      state.at, state.used, state.phase = 0, 0, 0
    end
    return true
  end

  function kind.whole_at(state, rule)
    local phase = state.phase
    if phase >= rule.period then phase = 0 end
    return refilled_at(rule, state.at, phase, state.used)
  end

  function kind.pack(state)
    return pack_state(TAG, state.at, state.used, state.phase)
  end

  return kind
end
