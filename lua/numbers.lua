-- Exact whole-number arithmetic on doubles; the twin of the functions at the end of src/algorithm/mod.rs.
-- Every number here is a whole number from 0 to 2^53. There x % d, which Lua takes as x - floor(x / d) * d, is exact: below a
-- whole number q + 1 the quotient x / d stays at least 1 / d away, more than its rounding error of at most q / 2^53.
-- Comparisons instead of math.min and math.max: a call from Lua into C costs as much as ten of them.

local LARGEST = 9007199254740992
local call = redis.call
local pack, unpack_from = struct.pack, struct.unpack

-- floor((a * b + add) / d), stopped at 2^53, and the remainder.
local function multiply_divide(a, b, add, d)
  local product = a * b + add
  if product < LARGEST then
    local rest = product % d
    return (product - rest) / d, rest
  end
  -- The long way: b's bits from the top, keeping a quotient and a remainder below d. 2r is exact, being even.
  local a_rest, add_rest = a % d, add % d
  local a_whole, add_whole = (a - a_rest) / d, (add - add_rest) / d
  local quotient, rest = 0, 0
  local _, bits = math.frexp(b)
  local bit = 2 ^ (bits - 1)
  while bit >= 1 do
    quotient, rest = quotient * 2, rest * 2
    if rest >= d then quotient, rest = quotient + 1, rest - d end
    if b >= bit then
      b, quotient = b - bit, quotient + a_whole
      if rest >= d - a_rest then quotient, rest = quotient + 1, rest - (d - a_rest) else rest = rest + a_rest end
    end
    bit = bit / 2
  end
  quotient = quotient + add_whole
  if rest >= d - add_rest then quotient, rest = quotient + 1, rest - (d - add_rest) else rest = rest + add_rest end
  return quotient < LARGEST and quotient or LARGEST, rest
end

-- ceil((a * b + add) / d), stopped at 2^53.
local function multiply_divide_up(a, b, add, d)
  local quotient, rest = multiply_divide(a, b, add, d)
  if rest > 0 and quotient < LARGEST then return quotient + 1 end
  return quotient
end

-- The instant `wait` after `at`, no later than the last instant.
local function later(at, wait)
  local instant = at + wait
  return instant < LARGEST and instant or LARGEST
end

-- Time as a state knows it: it does not run backwards.
local function latest(now, at)
  return now > at and now or at
end

-- a - b, or 0 where that is negative.
local function less(a, b)
  return a > b and a - b or 0
end

-- A packed state is a one-byte tag, an instant (7 bytes) and two counts, as wide as the larger one needs; the size tells the
-- width. Up to 12 bytes a value takes 32 bytes of a node's memory, with all that Redis adds, and up to 28 bytes it takes 48.

-- The three numbers of a packed state; those of a key nobody has asked for, if it is not one with this tag.
local function unpack_state(tag, raw)
  if not raw then return 0, 0, 0 end
  local size, found, at, first, second = #raw, nil, nil, nil, nil
  if size == 12 then
    found, at, first, second = unpack_from('>BI7I2I2', raw)
  elseif size == 16 then
    found, at, first, second = unpack_from('>BI7I4I4', raw)
  elseif size == 22 then
    found, at, first, second = unpack_from('>BI7I7I7', raw)
  end
  if found == tag then return at, first, second end
  return 0, 0, 0
end

local function pack_state(tag, at, first, second)
  local largest = first > second and first or second
  if largest < 65536 then return pack('>BI7I2I2', tag, at, first, second) end
  if largest < 4294967296 then return pack('>BI7I4I4', tag, at, first, second) end
  return pack('>BI7I7I7', tag, at, first, second)
end
