# One that leads something loses that, and gets it back when it stays; what others lead is not touched.
cluster of 3
call flapping the leader of likes
add likes 1 id a at flapping -> 1
add views 1 id a at flapping -> 1
note leaders but of flapping
cut flapping from all for 3 s, 5 times
leaders are as noted
settle
leaders are as noted
add likes 1 id b at flapping -> 2
add views 1 id b at flapping -> 2
all replicas agree
