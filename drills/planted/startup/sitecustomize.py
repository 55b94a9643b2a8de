"""Python imports this module at the start of every process of a planted run, before anything of the server (see the
module `site` of the standard library).
"""

from drills.planted.import_hook import plant_from_environment

plant_from_environment()
