"""Constants with owners: what hardware, libraries, frameworks and environments add to tables."""
