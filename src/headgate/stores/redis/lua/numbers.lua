-- Whole numbers as text, and back. tostring() would round a moment, and lose its microseconds.
--
-- Each direction costs as much as a small command of the server. So common numbers are remembered,
-- and so is the last text that was made.

Numbers = {}

local format = string.format
-- '%.0f' is slower. It is for machines whose long has 32 bits, where '%d' is wrong.
local INTEGER = format('%d', MOST) == '4503599627370496' and '%d' or '%.0f'
local SOME = 1000
local texts, texts_known, numbers, numbers_known = {}, 0, {}, 0
local last, last_text

local function is_common(number)
  return (number >= -1 and number < SOME) or number % 1000 == 0
end

-- An estimate may be beyond 2^63, where '%d' is wrong, too.
local function text_of(number)
  return format(number < NEVER and INTEGER or '%.0f', number)
end

function Numbers.text(number)
  local text = texts[number]
  if text then return text end
  if not is_common(number) then
    if number ~= last then last, last_text = number, text_of(number) end
    return last_text
  end
  if texts_known == SOME then texts, texts_known = {}, 0 end
  text = text_of(number)
  texts[number], texts_known = text, texts_known + 1
  return text
end

function Numbers.parse(text)
  local number = numbers[text]
  if number then return number end
  number = tonumber(text)
  local whole = number and number == floor(number) and number < NEVER
  -- Not `assert`: it would make the message for each number.
  if not whole then error('headgate: not a whole number: ' .. tostring(text), 0) end
  if is_common(number) then
    if numbers_known == SOME then numbers, numbers_known = {}, 0 end
    numbers[text], numbers_known = number, numbers_known + 1
  end
  return number
end
