# A follower that is started again keeps what it may have promised: nobody is elected while the old leader trusts its lease.
cluster of 3
call old the leader of likes
call one a follower of likes
call other another follower of likes
add likes 1 id a at old -> 1

# The other wants to be elected all the time, and needs the one.
cut old from other
wait 1 s
kill one
cut old from one
start one
for 2 s nobody else leads likes
heal
settle

# Once more.
cut old from other
wait 1 s
kill one
cut old from one
start one
for 2 s nobody else leads likes
heal
settle

add likes 1 id b at other -> 2
all replicas agree

# All at once: they promised each other, and elect somebody all the same.
kill node 1
kill node 2
kill node 3
start node 1
start node 2
start node 3
add likes 1 id c at node 1 -> 3
