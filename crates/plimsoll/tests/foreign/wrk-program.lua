request = function()
  return wrk.format("GET", "/" .. math.random(10))
end
