-- Twin of src/algorithm/sliding_window_counter.rs. A state: start, previous, current.

local function sliding_window_counter()
  -- The windows in force: the current one's start, what was used in the previous one and in it.
  local function windows_at(period, now, start, previous, current)
    local time = now > start and now or start
    local begun = time - time % period
    if start >= begun then return begun, previous, current end
    if start + period >= begun then return begun, current, 0 end
    return begun, 0, 0
  end

  -- When cost fits: the root of this window's line, or of the next one's.
  local function root(start, period, previous, current, room)
    if current <= room then
      return later(start, less(period, (multiply_divide(room - current, period, 0, previous > 0 and previous or 1))))
    end
    return later(later(start, period), less(period, (multiply_divide(room, period, 0, current))))
  end

  return {
    tag = 99, -- 'c'

    look = function(rule, now, cost, at, previous, current)
      local units, period, start = rule.units, rule.period, nil
      start, previous, current = windows_at(period, now, at, previous, current)
      local left = units - current
      if previous > 0 then
        left = left - multiply_divide_up(previous, period - ((now > at and now or at) - start), 0, period)
      end
      if left < 0 then left = 0 end
      -- When neither window counts any longer.
      local over, after = start + period, start + 2 * period
      if over > LARGEST then over = LARGEST end
      if after > LARGEST then after = LARGEST end
      local whole = current > 0 and after or previous > 0 and over or 0
      if cost <= left then return left, whole, current + cost > 0 and after or whole, start, previous, current + cost end
      return left, whole, cost <= units and root(start, period, previous, current, units - cost) or nil
    end,

    release = function(rule, now, cost, charged_at, start, previous, current)
      start, previous, current = windows_at(rule.period, now, start, previous, current)
      if charged_at - charged_at % rule.period ~= start then return end
      current = less(current, cost)
      return current + previous > 0 and start or 0, previous, current
    end,
  }
end
