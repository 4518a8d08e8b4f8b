-- Decides many groups of checks in one call. It follows numbers.lua and the algorithms in one script (see script.rs).
--
-- KEYS   one per check, in the order of the checks. Groups may share keys: a later one sees what an earlier one charged.
--        Within a group they differ.
-- ARGV   time               µs since the epoch; 0: this node's clock, read once
--        rules, then each   algorithm (1 fixed_window, 2 sliding_window_log, 3 sliding_window_counter, 4 token_bucket),
--                           units, period, burst, enforced (1) or shadow (0)
--        groups to the end  operation, checks, then each check's: rule (from 1), cost; for give back also when it was charged;
--                           for 5 also: units to lease, how long they are held, units given back, when those were charged
--        operation          1 check: looks at all, and if every enforced one admits, charges all that admit
--                           2 charge as much of the cost as fits   3 give back   4 look, and charge nothing
--                           5 as 1, but first takes what is given back, and at last charges leases: of what then remains
--                           at most an eighth
-- Reply  whole numbers: the time, then four for each check:
--        flags              1 admitted + 2 charged + 4 for each unit leased
--        remaining, reset   before it, waits counted from the time
--        last               admitted: the reset if it is charged, lease and all; refused: the retry after, -1 for never;
--                           for operation 2 the units charged, for 3 nothing (0)
-- Units  times are µs; all are whole numbers to 2^53, in text on the way in.
-- Expiry each write sets it, to when the state says no more than none would, rounded up to ms. What is not such a state
--        (another algorithm's, a stranger's) counts as none and is replaced.

-- An algorithm's functions are made when a rule asks for them: a call mostly needs one or two.
local MAKERS = { fixed_window, sliding_window_log, sliding_window_counter, token_bucket }
local kinds = {}

local arguments, format = ARGV, string.format
local now = tonumber(arguments[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local rules = {}
local position = 3
for i = 1, tonumber(arguments[2]) do
  local algorithm = tonumber(arguments[position])
  kinds[algorithm] = kinds[algorithm] or MAKERS[algorithm]()
  rules[i] = {
    kind = kinds[algorithm],
    units = tonumber(arguments[position + 1]),
    period = tonumber(arguments[position + 2]),
    burst = tonumber(arguments[position + 3]),
    enforced = arguments[position + 4] == '1',
  }
  position = position + 5
end

local states, written, raws = {}, {}, nil
local checks = 0 -- of the groups before this one
local reply = { now }
local size = 1

-- (Formatted here: Redis writes a number argument as a float, which takes longer.)
local function write(state)
  local life = ceil((state.kind.whole_at(state, state.rule) - now) / 1000)
  if life > 0 then
    redis.call('SET', state.key, state.kind.pack(state), 'PX', format('%d', life))
  else
    redis.call('DEL', state.key)
  end
end

-- The state of the check's key, read once a call. If the call asks for it under two algorithms (during a reload), the last
-- one's state is kept.
local function state_of(check, rule)
  local key = KEYS[check]
  local state = states[key]
  if state and state.kind == rule.kind then return state end
  if state and state.rule then write(state) end
  if not rule.kind.list then raws = raws or redis.call('MGET', unpack(KEYS)) end
  state = rule.kind.load(not state and raws and raws[check], key, rule, now)
  states[key] = state
  return state
end

-- Strings are written once, at the end, however often they changed.
local function changed(state, rule)
  if rule.kind.list then return end
  if not state.rule then written[#written + 1] = state end
  state.rule = rule
end

local function charge(state, rule, cost)
  if cost > 0 then
    rule.kind.charge(state, rule, now, cost)
    changed(state, rule)
  end
end

-- Appends the four numbers of a look; tells whether it admits, and what is left.
local function look(state, rule, cost)
  local left, whole, last = rule.kind.look(state, rule, now, cost)
  local admitted = cost <= left
  if not admitted then
    last = last and (last > now and last - now or 1) or -1
  else
    last = less(last, now)
  end
  reply[size + 1], reply[size + 2] = admitted and 1 or 0, left
  reply[size + 3], reply[size + 4] = less(whole, now), last
  size = size + 4
  return admitted, left
end

local LEASE_SHARE = 8

-- Charges up to `wanted` units more, to be held for `hold`; `first` is where the check's four numbers begin.
local function lease(state, rule, wanted, hold, first)
  if wanted == 0 or rule.kind.list then return end
  local left = rule.kind.look(state, rule, now, 0)
  local share = (left - left % LEASE_SHARE) / LEASE_SHARE
  local units = wanted < share and wanted or share
  if rule.kind.lease then
    units = rule.kind.lease(state, rule, now, wanted, hold, share)
  elseif units > 0 then
    rule.kind.charge(state, rule, now, units)
  end
  if units == 0 then return end
  changed(state, rule)
  local _, whole = rule.kind.look(state, rule, now, 0)
  reply[first], reply[first + 3] = reply[first] + 4 * units, less(whole, now)
end

local function take_back(state, rule, units, charged_at)
  if units > 0 and rule.kind.release(state, rule, now, units, charged_at) then changed(state, rule) end
end

local group_rules, group_costs, group_states = {}, {}, {}
local group_leases, group_holds = {}, {}

local function check_group(count, leasing)
  local flags, passes = size + 1, true
  for i = 1, count do
    local rule, cost = rules[tonumber(arguments[position])], tonumber(arguments[position + 1])
    local state = state_of(checks + i, rule)
    if leasing then
      group_leases[i], group_holds[i] = tonumber(arguments[position + 2]), tonumber(arguments[position + 3])
      take_back(state, rule, tonumber(arguments[position + 4]), tonumber(arguments[position + 5]))
    end
    position = position + (leasing and 6 or 2)
    group_rules[i], group_costs[i], group_states[i] = rule, cost, state
    if not look(state, rule, cost) and rule.enforced then passes = false end
  end
  for i = 1, passes and count or 0 do
    if reply[flags] == 1 then
      charge(group_states[i], group_rules[i], group_costs[i])
      reply[flags] = 3
      if leasing then lease(group_states[i], group_rules[i], group_leases[i], group_holds[i], flags) end
    end
    flags = flags + 4
  end
end

local function single(operation)
  local rule, cost = rules[tonumber(arguments[position])], tonumber(arguments[position + 1])
  local state = state_of(checks + 1, rule)
  if operation == '4' then
    look(state, rule, cost)
  else
    local _, left = look(state, rule, 0)
    reply[size] = 0
    if operation == '2' then
      local fits = cost < left and cost or left
      charge(state, rule, fits)
      reply[size - 3], reply[size] = fits > 0 and 3 or 1, fits
    elseif rule.kind.release(state, rule, now, cost, tonumber(arguments[position + 2])) then
      changed(state, rule)
    end
  end
  position = position + (operation == '3' and 3 or 2)
end

while position <= #arguments do
  local operation, count = arguments[position], tonumber(arguments[position + 1])
  position = position + 2
  if operation == '1' or operation == '5' then
    check_group(count, operation == '5')
  else
    single(operation)
  end
  checks = checks + count
end

for i = 1, #written do
  if states[written[i].key] == written[i] then write(written[i]) end
end

return reply
