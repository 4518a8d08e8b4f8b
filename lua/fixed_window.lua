-- Twin of src/algorithm/fixed_window.rs. A string: 'f', start (7 bytes), used (4); 'F' with 7 bytes for used from 2^32.

local function fixed_window()
  local FIXED, FIXED_WIDE = 102, 70 -- 'f', 'F'
  local kind = {}

  function kind.load(raw, key)
    local start, used = unpack_state(raw, FIXED, 12, '>I7I4', FIXED_WIDE, 15, '>I7I7')
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
    if state.used < 4294967296 then return pack('>c0I7I4', 'f', state.start, state.used) end
    return pack('>c0I7I7', 'F', state.start, state.used)
  end

  return kind
end
