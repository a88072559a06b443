# What a deposed leader sent before it knew arrives late, and is refused: it never shows up.
cluster of 3
call old the leader of likes
call other a follower of likes
add likes 1 id a at other -> 1
hold what old says
cut old from all
ask late: add likes 1000 id late at old
wait 5 s
add likes 10 id b at other -> 11
answer to late -> outcome-unknown

# Now the others hear what it said.
heal
release
wait 2 s
read likes at other -> 11
read likes at old -> 11
settle
add likes 1 id c at old -> 12
all replicas agree
# Asked again, it counts like any other.
add likes 1000 id late at other -> 1012
read likes at old -> 1012
