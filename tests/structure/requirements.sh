#!/bin/sh
# SPDX-License-Identifier: MIT
# The table in docs/requirements.md lists every requirement once, and every test it names exists.
set -eu
cd "$1"
table=docs/requirements.md
failed=0

for number in $(seq -w 1 56); do
    [ "$(grep -c "^| G$number |" $table)" -eq 1 ] || {
        echo "G$number is not in the table exactly once"
        failed=1
    }
done

# shellcheck disable=SC2016 # these are quotes of the table
named=$(grep '^| G' $table | grep -oE '`[a-z]+/[a-z_0-9]+\.(c|sh|py)(:[a-z_0-9]+)?`' | tr -d '`')
[ -n "$named" ]
for test in $named; do
    file=tests/${test%%:*}
    case $test in
    *.py:*) grep -q "^def ${test##*:}(" "$file" ;;
    *:*) grep -q "^static void ${test##*:}(void \*\*state)" "$file" ;;
    *) test -e "$file" ;;
    esac || {
        echo "there is no test $test"
        failed=1
    }
done
exit $failed
