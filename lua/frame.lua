-- Decides many groups of checks in one call. It follows numbers.lua and the algorithms in one script (see script.rs).
--
-- KEYS   each once. Groups may share keys: a later one sees what an earlier one charged. Within a group they differ.
-- ARGV   one string of packed numbers, big-endian (a node spends more on taking in an argument than on a check's arithmetic):
--        time (7 bytes)     µs since the epoch; 0: this node's clock, read once
--        rules (2), each    algorithm (1: 1 fixed_window, 2 sliding_window_log, 3 sliding_window_counter, 4 token_bucket),
--                           units (7), period (7), burst (7), enforced (1: 1) or shadow (0)
--        checks to the end  operation (1), how many more checks its group has (2), key and rule (2 each, from 1),
--                           cost (7);
--                           for 3 also when it was charged (7);
--                           for 5 also: units to lease, how long they are held, units given back, when those were charged (7 each)
--        operation          1 check: looks at all of the group, and if every enforced one admits, charges all that admit
--                           2 charge as much of the cost as fits   3 give back   4 look, and charge nothing
--                           5 as 1, but first takes what is given back, and at last charges leases: of what then remains
--                           at most an eighth
-- Reply  whole numbers: the time, then four for each check:
--        flags              1 admitted + 2 charged + 4 for each unit leased
--        remaining, reset   before it, waits counted from the time
--        last               admitted: the reset if it is charged, lease and all; refused: the retry after, -1 for never;
--                           for operation 2 the units charged, for 3 nothing (0)
-- Units  times are µs; all are whole numbers to 2^53.
-- Expiry each write sets it, to when the state says no more than none would, rounded up to ms. What is not such a state
--        (another algorithm's, a stranger's) counts as none and is replaced.
--
-- Every call makes its functions and tables anew, which is most of what a short call costs, and what a check costs is mostly
-- the number of steps: so there are few functions, and the loop is one piece.

local CHECK, CHARGE_UP_TO, GIVE_BACK, LEASE = 1, 2, 3, 5
local LEASE_SHARE = 8

local argument, format = ARGV[1], string.format
local now, rule_count, position = unpack_from('>I7I2', argument)
if now == 0 then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- An algorithm's functions are made when a rule asks for them: a call mostly needs one or two.
local MAKERS = { fixed_window, sliding_window_log, sliding_window_counter, token_bucket }
local kinds, rules = {}, {}
for i = 1, rule_count do
  local algorithm, units, period, burst, enforced
  algorithm, units, period, burst, enforced, position = unpack_from('>BI7I7I7B', argument, position)
  local kind = kinds[algorithm] or MAKERS[algorithm]()
  kinds[algorithm] = kind
  rules[i] = { kind = kind, units = units, period = period, burst = burst, enforced = enforced == 1 }
end

-- Packed states by key, read once, and when the changed ones say no more than none would: each is written once, at the end.
local keys = KEYS
local packed, wholes = call('MGET', unpack(keys)), {}
-- Logs are read and written as they are asked for. If a call asks for a key under two algorithms (during a reload), what is
-- charged under one replaces what was charged under the other.
local logs = {}

local function look(key, rule, cost)
  local kind = rule.kind
  if kind.tag then return kind.look(rule, now, cost, unpack_state(kind.tag, packed[key])) end
  logs[key] = logs[key] or kind.load(keys[key], rule, now)
  return kind.look(rule, now, cost, logs[key])
end

-- The state is now another one.
local function change(key, kind, whole, at, first, second)
  if kind.tag then
    packed[key], wholes[key], logs[key] = pack_state(kind.tag, at, first, second), whole, nil
  else
    packed[key], wholes[key], logs[key] = nil, nil, at
  end
end

-- Charges what fits; tells when the limit is whole again.
local function charge(key, rule, cost)
  local _, _, whole, at, first, second = look(key, rule, cost)
  if rule.kind.charge then at = rule.kind.charge(rule, now, cost, at) end
  change(key, rule.kind, whole, at, first, second)
  return whole
end

local function give_back(key, rule, units, charged_at)
  local kind = rule.kind
  local at, first, second
  if kind.tag then
    at, first, second = kind.release(rule, now, units, charged_at, unpack_state(kind.tag, packed[key]))
  else
    look(key, rule, 0)
    at = kind.release(rule, now, units, charged_at, logs[key])
  end
  if not at then return end
  local _, whole = kind.look(rule, now, 0, at, first, second)
  change(key, kind, whole, at, first, second)
end

-- Charges up to `wanted` units more, to be held for `hold`; tells how many, and when the limit is whole again.
local function lease(key, rule, wanted, hold)
  if wanted == 0 then return 0 end
  local left = look(key, rule, 0)
  local share, kept_out = (left - left % LEASE_SHARE) / LEASE_SHARE, 0
  if rule.kind.kept_out then
    kept_out = rule.kind.kept_out(rule, now, hold, share, unpack_state(rule.kind.tag, packed[key]))
  end
  local units = wanted < share - kept_out and wanted or share - kept_out
  if units > 0 then return units, charge(key, rule, units + kept_out) end
  return 0
end

local reply, size = { now, 0, 0, 0, 0 }, 1
-- Of the group at hand: each check's key and rule, its state if it is charged and when that is whole again (of a log, the cost),
-- and where its lease is told.
local group, group_rules, group_states, group_wholes, group_leases = {}, {}, {}, {}, {}

while position <= #argument do
  local flags, passes, member = size + 1, true, 0
  local operation, following
  repeat
    local key, rule, cost
    operation, following, key, rule, cost, position = unpack_from('>BI2I2I2I7', argument, position)
    rule, member = rules[rule], member + 1
    if operation == LEASE then
      local back, charged_at
      group_leases[member] = position
      back, charged_at, position = unpack_from('>I7I7', argument, position + 14)
      if back > 0 then give_back(key, rule, back, charged_at) end
    end

    local asked = (operation == CHARGE_UP_TO or operation == GIVE_BACK) and 0 or cost
    local left, whole, last, at, first, second = look(key, rule, asked)
    group[member], group_rules[member], group_states[member], group_wholes[member] = key, rule, asked, last
    if asked <= left then
      if first and asked > 0 then group_states[member] = pack_state(rule.kind.tag, at, first, second) end
      reply[size + 1], last = 1, last > now and last - now or 0
    else
      reply[size + 1], last = 0, last and (last > now and last - now or 1) or -1
      if rule.enforced then passes = false end
    end
    reply[size + 2], reply[size + 3], reply[size + 4] = left, whole > now and whole - now or 0, last
    size = size + 4

    if operation == CHARGE_UP_TO then
      local fits = cost < left and cost or left
      if fits > 0 then charge(key, rule, fits) end
      reply[size - 3], reply[size] = fits > 0 and 3 or 1, fits
    elseif operation == GIVE_BACK then
      local charged_at
      charged_at, position = unpack_from('>I7', argument, position)
      give_back(key, rule, cost, charged_at)
      reply[size] = 0
    end
  until following == 0

  if passes and (operation == CHECK or operation == LEASE) then
    for i = 1, member do
      if reply[flags] == 1 then
        local key, rule, state = group[i], group_rules[i], group_states[i]
        if state == 0 then
          -- Nothing is charged, and nothing is written.
        elseif rule.kind.tag then
          packed[key], wholes[key], logs[key] = state, group_wholes[i], nil
        else
          charge(key, rule, state)
        end
        reply[flags] = 3
        if operation == LEASE and rule.kind.tag then
          local units, whole = lease(key, rule, unpack_from('>I7I7', argument, group_leases[i]))
          if units > 0 then reply[flags], reply[flags + 3] = 3 + 4 * units, whole > now and whole - now or 0 end
        end
      end
      flags = flags + 4
    end
  end
end

local lasting, text
for key = 1, #keys do
  local whole = wholes[key]
  if whole then
    -- Formatted here, as Redis writes a number as a float, which takes longer; once for all keys of a window.
    local life = whole - now + 999
    if life > 999 then
      if whole ~= lasting then lasting, text = whole, format('%d', (life - life % 1000) / 1000) end
      call('SET', keys[key], packed[key], 'PX', text)
    else
      call('DEL', keys[key])
    end
  end
end

return reply
