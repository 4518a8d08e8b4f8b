-- Twin of src/algorithm/sliding_window_counter.rs. A state: start, previous, current.

if algorithm == 3 then
  looks[i] = function(cost, held, back, charged_at)
    local start, previous, current = unpack_state(99, held) -- 'c'
    local time = now > start and now or start
    local elapsed = time % period
    local begun = time - elapsed
    if start < begun then
      previous, current = start + period >= begun and current or 0, 0
    end
    local returns = back and charged_at - charged_at % period == begun
    if returns then current = current > back and current - back or 0 end

    local left = units - current
    if previous > 0 then left = left - multiply_divide(previous, period - elapsed, 0, period, true) end
    if left < 0 then left = 0 end
    -- When neither window counts any longer.
    local over, after = begun + period, begun + 2 * period
    if over > 2^53 then over = 2^53 end
    if after > 2^53 then after = 2^53 end
    local whole = current > 0 and after or previous > 0 and over or 0
    if cost > left then
      if cost > units then return left, whole end
      -- When cost fits: the root of this window's line, or of the next one's.
      local room, from, wait = units - cost, over, nil
      if current <= room then
        from, wait = begun, multiply_divide(room - current, period, 0, previous > 0 and previous or 1)
      else
        wait = multiply_divide(room, period, 0, current)
      end
      from = wait < period and from + period - wait or from
      return left, whole, from < 2^53 and from or 2^53
    end
    if cost > 0 then return left, whole, after, pack_state(99, begun, previous, current + cost) end
    return left, whole, whole, returns and pack_state(99, whole > 0 and begun or 0, previous, current)
  end
end
