"""The launch room: plans as files of the launchers that people have, and back, one file each."""
