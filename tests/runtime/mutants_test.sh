#!/bin/sh
# Defects that are put in on purpose are found: of the table of tests/mutants those that take a program of this room
# alone, every tenth; `make mutants` tries all.
CONTROLS=no EVERY=10 exec sh "$(dirname "$0")/../mutants/mutants.sh" plans tape graph_s partial holdings
