async def check(run, places, install): pass
