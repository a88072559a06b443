# A leader hangs: nobody hears that it is gone, and what it was asked is asked again once somebody else leads.
cluster of 4
call old the leader of likes
call other a follower of likes
call stranger a stranger to likes
add likes 1 id a at other -> 1
cut old from all
ask w: add likes 1 id b at stranger
add likes 1 id c at other -> 2 or 3
answer to w -> 2 or 3
read likes at other -> 3
read likes at stranger -> 3
heal
settle
read likes at old -> 3
all replicas agree
