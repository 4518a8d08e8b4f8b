-- Exact whole-number arithmetic on doubles; the twin of the functions at the end of src/algorithm/mod.rs.
-- Every number here is a whole number from 0 to 2^53. There x % d, which Lua takes as x - floor(x / d) * d, is exact: below a
-- whole number q + 1 the quotient x / d stays at least 1 / d away, more than its rounding error of at most q / 2^53.
-- Comparisons instead of math.min and math.max: a call from Lua into C costs as much as ten of them. 2^53 is written out, for
-- Lua folds it, and a name for it would be one more thing that each function is made with.

local call, unpack_from, pack, byte = redis.call, struct.unpack, struct.pack, string.byte

-- floor((a * b + add) / d), or with `up` ceil, stopped at 2^53; and the remainder.
local function multiply_divide(a, b, add, d, up)
  local quotient, rest = a * b + add
  if quotient < 2^53 then
    rest = quotient % d
    quotient = (quotient - rest) / d
  else
    -- The long way: b's bits from the top, keeping a quotient and a remainder below d. 2r is exact, being even.
    local a_rest, add_rest = a % d, add % d
    local a_whole, add_whole = (a - a_rest) / d, (add - add_rest) / d
    local _, bits = math.frexp(b)
    local bit = 2 ^ (bits - 1)
    quotient, rest = 0, 0
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
    if quotient > 2^53 then quotient = 2^53 end
  end
  if up and rest > 0 and quotient < 2^53 then quotient = quotient + 1 end
  return quotient, rest
end

-- A packed state is a one-byte tag, an instant (7 bytes) and two counts, as wide as the larger one needs; the size tells the
-- width. Up to 12 bytes a value takes 32 bytes of a node's memory, with all that Redis adds, and up to 28 bytes it takes 48.

-- The three numbers of a packed state; those of a key nobody has asked for, if it is not one with this tag.
local function unpack_state(tag, raw)
  local size = raw and #raw
  local format = size == 12 and '>BI7HH' or size == 16 and '>BI7I4I4' or size == 22 and '>BI7I7I7'
  if format then
    local found, at, first, second = unpack_from(format, raw)
    if found == tag then return at, first, second end
  end
  return 0, 0, 0
end

local function pack_state(tag, at, first, second)
  local largest = first > second and first or second
  if largest < 65536 then return pack('>BI7HH', tag, at, first, second) end
  if largest < 4294967296 then return pack('>BI7I4I4', tag, at, first, second) end
  return pack('>BI7I7I7', tag, at, first, second)
end
