-- Twin of src/algorithm/sliding_window_counter.rs. A packed state: 'c', start, previous, current.

local function sliding_window_counter()
  local TAG = 99 -- 'c'
  local kind = {}

  function kind.load(raw, key)
    local start, previous, current = unpack_state(raw, TAG)
    return {
      kind = kind, key = key, rule = false,
      start = start or 0, previous = previous or 0, current = current or 0,
    }
  end

  -- The windows in force: the current one's start, what was used in the previous one and in it.
  local function windows_at(state, rule, now)
    local start = window_start(latest(now, state.start), rule.period)
    if state.start >= start then return start, state.previous, state.current end
    if later(state.start, rule.period) >= start then return start, state.current, 0 end
    return start, 0, 0
  end

  -- When neither window counts any longer.
  local function windows_over(start, period, previous, current)
    if current > 0 then return later(later(start, period), period) end
    return previous > 0 and later(start, period) or 0
  end

  -- When cost fits: the root of this window's line, or of the next one's.
  local function root(start, period, previous, current, room)
    if current <= room then
      return later(start, less(period, (multiply_divide(room - current, period, 0, previous > 0 and previous or 1))))
    end
    return later(later(start, period), less(period, (multiply_divide(room, period, 0, current))))
  end

  function kind.look(state, rule, now, cost)
    local period = rule.period
    local start, previous, current = windows_at(state, rule, now)
    local weight = 0
    if previous > 0 then
      weight = multiply_divide_up(previous, period - (latest(now, state.start) - start), 0, period)
    end
    local left = less(rule.units - current, weight)
    local whole = windows_over(start, period, previous, current)
    if cost <= left then return left, whole, windows_over(start, period, previous, current + cost) end
    return left, whole, cost <= rule.units and root(start, period, previous, current, rule.units - cost) or nil
  end

  function kind.charge(state, rule, now, cost)
    local start, previous, current = windows_at(state, rule, now)
    state.start, state.previous, state.current = start, previous, current + cost
  end

  function kind.release(state, rule, now, cost, charged_at)
    local start, previous, current = windows_at(state, rule, now)
    if window_start(charged_at, rule.period) ~= start then return end
    current = less(current, cost)
    state.start, state.previous, state.current = current + previous > 0 and start or 0, previous, current
    return true
  end

  function kind.whole_at(state, rule)
    return windows_over(window_start(state.start, rule.period), rule.period, state.previous, state.current)
  end

  function kind.pack(state)
    return pack_state(TAG, state.start, state.previous, state.current)
  end

  return kind
end
