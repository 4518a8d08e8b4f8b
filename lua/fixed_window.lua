-- Twin of src/algorithm/fixed_window.rs. A state: start, used, 0.

local function fixed_window()
  -- The window in force: its start and what was used in it.
  local function window_at(period, now, start, used)
    local time = now > start and now or start
    local begun = time - time % period
    return begun, start >= begun and used or 0
  end

  return {
    tag = 102, -- 'f'

    look = function(rule, now, cost, start, used)
      start, used = window_at(rule.period, now, start, used)
      local over = start + rule.period
      if over > LARGEST then over = LARGEST end
      local left, whole = rule.units > used and rule.units - used or 0, used > 0 and over or 0
      if cost <= left then return left, whole, used + cost > 0 and over or 0, start, used + cost, 0 end
      return left, whole, cost <= rule.units and over or nil
    end,

    release = function(rule, now, cost, charged_at, start, used)
      start, used = window_at(rule.period, now, start, used)
      if charged_at - charged_at % rule.period ~= start then return end
      if used > cost then return start, used - cost, 0 end
      return 0, 0, 0
    end,
  }
end
