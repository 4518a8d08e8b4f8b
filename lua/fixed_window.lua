-- Twin of src/algorithm/fixed_window.rs. A packed state: 'f', start, used, 0.

local function fixed_window()
  local TAG = 102 -- 'f'
  local kind = {}

  function kind.load(raw, key)
    local start, used = unpack_state(raw, TAG)
    return { kind = kind, key = key, rule = false, start = start or 0, used = used or 0 }
  end

  -- The window in force: its start and what was used in it.
  local function window_at(state, rule, now)
    local start = window_start(latest(now, state.start), rule.period)
    if state.start >= start then return start, state.used end
    return start, 0
  end

  function kind.look(state, rule, now, cost)
    local start, used = window_at(state, rule, now)
    local left, over = less(rule.units, used), later(start, rule.period)
    local whole = used > 0 and over or 0
    if cost <= left then return left, whole, used + cost > 0 and over or 0 end
    return left, whole, cost <= rule.units and over or nil
  end

  function kind.charge(state, rule, now, cost)
    local start, used = window_at(state, rule, now)
    state.start, state.used = start, used + cost
  end

  function kind.release(state, rule, now, cost, charged_at)
    local start, used = window_at(state, rule, now)
    if window_start(charged_at, rule.period) ~= start then return end
    used = less(used, cost)
    state.start, state.used = used > 0 and start or 0, used
    return true
  end

  function kind.whole_at(state, rule)
    return state.used > 0 and later(window_start(state.start, rule.period), rule.period) or 0
  end

  function kind.pack(state)
    return pack_state(TAG, state.start, state.used, 0)
  end

  return kind
end
