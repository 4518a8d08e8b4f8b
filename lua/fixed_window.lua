-- Twin of src/algorithm/fixed_window.rs. A state: start, used, 0.

if algorithm == 1 then
  looks[i] = function(cost, held, back, charged_at)
    local start, used = unpack_state(102, held) -- 'f'
    local time = now > start and now or start
    local begun = time - time % period
    if start < begun then used = 0 end
    local returns = back and charged_at - charged_at % period == begun
    if returns then used = used > back and used - back or 0 end
    local over = begun + period
    if over > 2^53 then over = 2^53 end
    local left, whole = units > used and units - used or 0, used > 0 and over or 0
    if cost > left then return left, whole, cost <= units and over or nil end
    if cost > 0 then return left, whole, over, pack_state(102, begun, used + cost, 0) end
    return left, whole, whole, returns and pack_state(102, whole > 0 and begun or 0, used, 0)
  end
end
