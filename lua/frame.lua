-- Decides many groups of checks in one call. numbers.lua comes before it, the algorithms in it (see script.rs).
--
-- KEYS   each once. Groups may share keys: a later one sees what an earlier one charged. Within a group they differ.
-- ARGV   one string of packed numbers, big-endian (a node spends more on taking in an argument than on a check's arithmetic):
--        timed (1)          1: a time (7) comes before the rules, µs since the epoch; 0: this node's clock, read once
--        plain (1)          1: no operations but 1 and 4, so nothing that serves only the others is made
--        rules (2), each    algorithm (1: 1 fixed_window, 2 sliding_window_log, 3 sliding_window_counter, 4 token_bucket),
--                           units (7), period (7), burst (7)
--        checks to the end  operation (1), whether more of its group follow (1: 1), enforced (1: 1) or shadow (0),
--                           key and rule (2 each, from 1), cost (1; 255: it follows in 7);
--                           for 3 also when it was charged (7);
--                           for 5 also: units to lease, how long they are held, units given back, when those were charged (7 each)
--        operation          1 check: looks at all of the group, and if every enforced one admits, charges all that admit
--                           2 charge as much of the cost as fits   3 give back   4 look, and charge nothing
--                           5 as 1, but first takes what is given back, and at last charges leases: of what then remains
--                           at most an eighth
-- Reply  one string of packed numbers (7 each), four for each check; after the first check's comes the time:
--        flags              1 admitted + 2 charged + 4 for each unit leased
--        remaining, reset   before it, waits counted from the time
--        last               admitted: the reset if it is charged, lease and all; refused: the retry after, 0 for never;
--                           for operation 2 the units charged, for 3 nothing (0)
-- Units  times are µs; all are whole numbers to 2^53.
-- Expiry each write sets it, to when the state says no more than none would, rounded up to ms. What is not such a state
--        (another algorithm's, a stranger's) counts as none and is replaced.
--
-- Every call makes its functions and tables anew, which is most of what a short call costs: so there are few of them, and only
-- those that the call needs. What a check costs is mostly the number of steps and of numbers unpacked: so the loop is one
-- piece, and takes small numbers as bytes, for a tenth of what unpacking costs.

local argument, keys = ARGV[1], KEYS
local size = #argument
local timed, plain, many, few = byte(argument, 1, 4)
plain = plain == 1

-- How far this node's clock is ahead of `now`.
local time, ahead, position = call('TIME'), 0, 5
local now = time[1] * 1000000 + time[2]
if timed == 1 then
  local clock = now
  now, position = unpack_from('>I7', argument, position)
  ahead = clock - now
end

-- Packed states by key, read once, and when the changed ones say no more than none would: each is written once, at the end.
local packed, wholes = call('MGET', unpack(keys)), { false, false }
-- By rule: `look` takes a cost and the state of a key (and what is given back first, and when that was charged). It tells what is
-- left and when the limit is whole again, before; if the cost fits, when it is whole with it, and the state if that is another
-- one; otherwise when it would fit, nil for never. What is kept out of a lease is told by `kept_out`.
local looks, kept_out = { false, false }, plain or {}
-- Logs are read and written as they are asked for, by `log_rules`. If a call asks for a key under two algorithms (during a
-- reload), what is charged under one replaces what was charged under the other.
local logs, log_rules

for i = 1, many * 256 + few do
  local algorithm, units, period, burst
  algorithm, units, period, burst, position = unpack_from('>BI7I7I7', argument, position)
  -- (the algorithms)
end

local state_of, keep, give_back, lease
if log_rules or not plain then
  function state_of(key, rule)
    local log = log_rules and log_rules[rule]
    if log then return log.open(key) end
    return packed[key]
  end

  -- What a look has told is now the state.
  function keep(key, rule, state, whole)
    local log = log_rules and log_rules[rule]
    if log then
      log.charge(key, state)
      packed[key], wholes[key] = nil, nil
    else
      packed[key], wholes[key] = state, whole
      if logs then logs[key] = nil end
    end
  end
end

if not plain then
  function give_back(key, rule, units, charged_at)
    local log = log_rules and log_rules[rule]
    if log then return log.release(key, units, charged_at) end
    local _, whole, _, state = looks[rule](0, packed[key], units, charged_at)
    if state then keep(key, rule, state, whole) end
  end

  -- Charges up to `wanted` units more, to be held for `time`; tells how many, and when the limit is whole again.
  function lease(key, rule, wanted, time)
    if wanted == 0 or log_rules and log_rules[rule] then return 0 end
    local left, _, _, _, used, phase = looks[rule](0, packed[key])
    local share = (left - left % 8) / 8
    local out = kept_out[rule] and kept_out[rule](time, share, used, phase) or 0
    local units = wanted < share - out and wanted or share - out
    if units == 0 then return 0 end
    local _, _, whole, state = looks[rule](units + out, packed[key])
    keep(key, rule, state, whole)
    return units, whole
  end
end

local rows, count = { false, false }, 0
-- Of the group at hand: those whose last one has not come yet, and whether no enforced one has refused.
local group, waiting, passes = nil, 0, true

while position <= size do
  local operation, more, enforced, high, key, upper, rule, cost = byte(argument, position, position + 7)
  position = position + 8
  key = high * 256 + key
  rule = upper * 256 + rule
  if cost == 255 then cost, position = unpack_from('>I7', argument, position) end
  local asked, extra = cost, position
  if operation == 1 or operation == 4 then
    -- Asked for as it is.
  elseif operation == 5 then
    local _, back, charged_at
    _, _, back, charged_at, position = unpack_from('>I7I7I7I7', argument, position)
    if back > 0 then give_back(key, rule, back, charged_at) end
  else
    asked = 0
  end

  local left, whole, last, state = looks[rule](asked, keep and state_of(key, rule) or packed[key])
  if asked > left and enforced == 1 then passes = false end
  count = count + 1
  if more == 1 then
    group, waiting = group or {}, waiting + 1
    group[waiting] = { key, rule, asked, extra, left, whole, last, state }
  else
    -- Of a group of one there is nothing in a table: the last is at hand, and the others follow it, backwards.
    local row = count
    while true do
      local flags, wait
      if asked <= left then
        flags = 1
        wait = last > now and last - now or 0
      else
        flags = 0
        wait = last and (last > now and last - now or 1) or 0
      end
      if operation == 1 or operation == 5 then
        if passes and flags == 1 then
          flags = 3
          if not state then
            -- Nothing is charged, and nothing is written.
          elseif keep then
            keep(key, rule, state, last)
          else
            packed[key] = state
            wholes[key] = last
          end
          if operation == 5 then
            local units, until_whole = lease(key, rule, unpack_from('>I7I7', argument, extra))
            if units > 0 then flags, wait = 3 + 4 * units, until_whole > now and until_whole - now or 0 end
          end
        end
      elseif operation == 2 then
        wait = cost < left and cost or left
        if wait > 0 then
          local _, _, after, charged = looks[rule](wait, state_of(key, rule))
          keep(key, rule, charged, after)
          flags = 3
        end
      elseif operation == 3 then
        local charged_at
        charged_at, position = unpack_from('>I7', argument, position)
        give_back(key, rule, cost, charged_at)
        wait = 0
      end
      local reset = whole > now and whole - now or 0
      rows[row] = pack(row == 1 and '>I7I7I7I7I7' or '>I7I7I7I7', flags, left, reset, wait, now)
      if waiting == 0 then break end
      key, rule, asked, extra, left, whole, last, state = unpack(group[waiting], 1, 8)
      row, waiting = row - 1, waiting - 1
    end
    passes = true
  end
end

local lasting, text
for key = 1, #keys do
  local whole = wholes[key]
  if whole then
    if whole > now then
      if whole ~= lasting then
        -- Formatted here, as Redis writes a number as a float, which takes longer; once for all keys of a window. An instant
        -- and not a time to live, which Redis would turn into one, for its replicas.
        local at = whole + ahead + 999
        lasting, text = whole, string.format('%d', (at - at % 1000) / 1000)
      end
      call('SET', keys[key], packed[key], 'PXAT', text)
    else
      call('DEL', keys[key])
    end
  end
end

return rows[2] and table.concat(rows) or rows[1]
