-- Twin of src/algorithm/sliding_window_log.rs. A list, oldest first: a unit admitted at t is the one element t; a charge of
-- c > 1 units is the two elements -t, -c; the last element is -(the units of all). Whole numbers are packed by Redis: about
-- 10 bytes a unit. A look reads both ends only; a charge writes the tail and cuts off what is over.

if algorithm == 2 then
  -- When what happened at `at` is over.
  local function over_at(at)
    return at + period < 2^53 and at + period or 2^53
  end

  -- Time as a state knows it: it does not run backwards.
  local function time_of(state)
    return now > state.last and now or state.last
  end

  -- The number at `index` from the head (0 is the oldest), read ahead in growing chunks; nil past the end or if it is none.
  local function element(state, index)
    local read = state.read
    while index >= #read do
      local chunk = call('LRANGE', state.key, #read, #read + (#read > 4 and #read or 4) - 1)
      if #chunk == 0 then return end
      for i = 1, #chunk do read[#read + 1] = chunk[i] end
    end
    return tonumber(read[index + 1])
  end

  -- The entry at `index`: its time, its units, the next one's index.
  local function entry(state, index)
    local number = element(state, index)
    if not number or number >= 0 then return number, 1, index + 1 end
    local units = element(state, index + 1)
    if units and units < 0 then return -number, -units, index + 2 end
  end

  -- Finds how many elements at the head are over, and the units in the others.
  local function scan(state)
    local time, index, live = time_of(state), 0, state.total
    state.period = period
    if over_at(state.last) <= time then live = 0 end
    while live > 0 do
      local at, units, after = entry(state, index)
      if not at then live = 0 break end -- not ours
      if over_at(at) > time then break end
      index, live = after, live - units
    end
    state.over, state.live = index, live > 0 and live or 0
  end

  local function load(key)
    local state = { key = key, period = period, present = false, read = {}, total = 0, last = 0, over = 0, live = 0 }
    local head = redis.pcall('LRANGE', key, 0, 3)
    state.present = head.err ~= nil or #head > 0
    if not head.err and #head > 1 then
      local tail = #head < 4 and head or call('LRANGE', key, -3, -1)
      local before, last, total = tonumber(tail[#tail - 2]), tonumber(tail[#tail - 1]), tonumber(tail[#tail])
      if last and last < 0 then last = before and -before end
      if last and last >= 0 and last <= 2^53 and total and total < 0 and total >= -2^53 then
        state.read, state.total, state.last = head, -total, last
      end
    end
    scan(state)
    return state
  end

  -- When `excess` units of the live ones are gone.
  local function gone_at(state, excess)
    local index = state.over
    while true do
      local at, units, after = entry(state, index)
      if not at then return over_at(state.last) end
      if units >= excess then return over_at(at) end
      index, excess = after, excess - units
    end
  end

  -- As a time to live: an instant that has passed would take the list away before the rest of the call has come to it.
  local function expire(state)
    call('PEXPIRE', state.key, math.ceil((over_at(state.last) - now) / 1000))
  end

  logs = logs or {}
  local log = {}
  log_rules = log_rules or {}
  log_rules[i] = log

  function log.open(key)
    local state = logs[key] or load(keys[key])
    if state.period ~= period then scan(state) end
    logs[key] = state
    return state
  end

  -- The first write is one that Redis refuses when memory is short, so that a refusal leaves the list as it was.
  function log.charge(key, cost)
    local state = logs[key]
    local name, at, total = state.key, time_of(state), state.live + cost
    if state.live == 0 then
      if state.present then call('DEL', name) end
      if cost == 1 then call('RPUSH', name, at, -total) else call('RPUSH', name, -at, -cost, -total) end
    else
      call('LSET', name, -1, cost == 1 and at or -at)
      if cost == 1 then call('RPUSH', name, -total) else call('RPUSH', name, -cost, -total) end
      if state.over > 0 then call('LPOP', name, state.over) end
    end
    state.read, state.over, state.present = {}, 0, true
    state.last, state.total, state.live = at, total, total
    expire(state)
  end

  looks[i] = function(cost, state)
    local live = state.live
    local left, whole = units > live and units - live or 0, live > 0 and over_at(state.last) or 0
    if cost > left then return left, whole, cost <= units and gone_at(state, live - (units - cost)) or nil end
    if cost > 0 then return left, whole, over_at(time_of(state)), cost end
    return left, whole, whole
  end

  if not plain then
    -- Marks up to `cost` units charged at `charged_at`, searching from the tail; tells how many units and how many elements.
    local function mark(state, cost, charged_at)
      local given, marked, offset = 0, 0, 2
      while given < cost do
        local chunk = call('LRANGE', state.key, -offset - 7, -offset)
        local i = #chunk
        if i == 0 then break end
        while i > 0 and given < cost do
          local number, units, size = tonumber(chunk[i]), 1, 1
          if not number then return given, marked end
          if number < 0 then
            if i == 1 then break end
            number, units, size = -(tonumber(chunk[i - 1]) or 0), -number, 2
          end
          if number < charged_at then return given, marked end
          if number == charged_at then
            local part = units < cost - given and units or cost - given
            if part < units then
              call('LSET', state.key, -offset, -(units - part))
            else
              for k = 0, size - 1 do call('LSET', state.key, -offset - k, 'x') end
              marked = marked + size
            end
            given = given + part
          end
          i, offset = i - size, offset + size
        end
        if #chunk < 8 then break end
      end
      return given, marked
    end

    function log.release(key, cost, charged_at)
      local state = log.open(key)
      if state.live == 0 or over_at(charged_at) <= time_of(state) then return end
      local given, marked = mark(state, cost, charged_at)
      if given == 0 then return end
      if given >= state.live then
        call('DEL', state.key)
      else
        if marked > 0 then call('LREM', state.key, -marked, 'x') end
        call('LSET', state.key, -1, -(state.total - given))
      end
      state = load(state.key)
      if state.present then expire(state) end
      logs[key] = state
    end
  end
end
