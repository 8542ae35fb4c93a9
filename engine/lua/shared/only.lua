-- What the plain paths of release and heartbeat begin with. Needs open.lua.

-- The record of `id`, where it is the only holder, and nothing is noted of silent processes and calls that were given up.
local function onlyRecord(id)
  local field, record = '@' .. id, nil
  for i = 1, #stored, 2 do
    local name = stored[i]
    if name == field then
      record = stored[i + 1]
    elseif name ~= 'fence' and name ~= 'floor' and name ~= 'lost' then
      return nil
    end
  end
  return record
end
