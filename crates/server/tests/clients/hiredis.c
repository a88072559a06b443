/* hiredis, the client that most others are built on: hiredis <port>. Prints `restart` and waits where the server is to be
 * killed and started again, and `fine` at the end. */

#include <assert.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef NDEBUG
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static redisContext *context;

static redisReply *ask(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = redisvCommand(context, format, arguments);
    va_end(arguments);
    return reply;
}

static void must_be_integer(redisReply *reply, long long expected) {
    MUST(reply && reply->type == REDIS_REPLY_INTEGER && reply->integer == expected);
    freeReplyObject(reply);
}

static void must_be_text(redisReply *reply, int type, const char *expected) {
    MUST(reply && reply->type == type && strncmp(reply->str, expected, strlen(expected)) == 0);
    freeReplyObject(reply);
}

static void must_be_null(redisReply *reply) {
    MUST(reply && reply->type == REDIS_REPLY_NIL);
    freeReplyObject(reply);
}

static void counters(void) {
    must_be_text(ask("FLUSHALL"), REDIS_REPLY_STATUS, "OK");
    must_be_text(ask("PING"), REDIS_REPLY_STATUS, "PONG");
    must_be_integer(ask("INCR a"), 1);
    must_be_integer(ask("INCRBY a %lld", 9LL), 10);
    must_be_text(ask("GET a"), REDIS_REPLY_STRING, "10");
    must_be_null(ask("GET nosuch"));
    must_be_integer(ask("INCR %b", "a\0b", (size_t)3), 1);
    must_be_text(ask("GET %b", "a\0b", (size_t)3), REDIS_REPLY_STRING, "1");
    must_be_text(ask("SET t 5 EX 100"), REDIS_REPLY_STATUS, "OK");
    must_be_null(ask("SET t 5 NX"));
    redisReply *left = ask("TTL t");
    MUST(left && left->type == REDIS_REPLY_INTEGER && left->integer > 0 && left->integer <= 100);
    freeReplyObject(left);
    redisReply *values = ask("MGET a nosuch t");
    MUST(values && values->type == REDIS_REPLY_ARRAY && values->elements == 3);
    MUST(values->element[1]->type == REDIS_REPLY_NIL && strcmp(values->element[2]->str, "5") == 0);
    freeReplyObject(values);
    redisReply *added = ask("Q.ADD q 5 ID one");
    MUST(added && added->elements == 4 && added->element[0]->integer == 5);
    freeReplyObject(added);
}

static void refusals(void) {
    must_be_text(ask("SET word hello"), REDIS_REPLY_ERROR, "ERR value is not an integer");
    must_be_text(ask("LPUSH list 1"), REDIS_REPLY_ERROR, "ERR unknown command");
    must_be_text(ask("AUTH secret"), REDIS_REPLY_ERROR, "ERR AUTH <password> called without");
    must_be_text(ask("SELECT 1"), REDIS_REPLY_ERROR, "ERR DB index is out of range");
    MUST(context->err == 0);
}

static void pipelines(void) {
    redisReply *reply;
    for (int number = 0; number < 10000; number++) MUST(redisAppendCommand(context, "INCR p") == REDIS_OK);
    for (int number = 1; number <= 10000; number++) {
        MUST(redisGetReply(context, (void **)&reply) == REDIS_OK);
        must_be_integer(reply, number);
    }
}

static void transactions(redisContext *other) {
    redisReply *reply;
    must_be_text(ask("MULTI"), REDIS_REPLY_STATUS, "OK");
    must_be_text(ask("INCR m"), REDIS_REPLY_STATUS, "QUEUED");
    must_be_text(ask("GET m"), REDIS_REPLY_STATUS, "QUEUED");
    reply = ask("EXEC");
    MUST(reply && reply->elements == 2 && reply->element[0]->integer == 1);
    freeReplyObject(reply);
    must_be_text(ask("WATCH m"), REDIS_REPLY_STATUS, "OK");
    must_be_integer(redisCommand(other, "INCR m"), 2);
    must_be_text(ask("MULTI"), REDIS_REPLY_STATUS, "OK");
    must_be_text(ask("INCR m"), REDIS_REPLY_STATUS, "QUEUED");
    must_be_null(ask("EXEC"));
}

static void walks(void) {
    long long found = 0;
    char cursor[32] = "0";
    for (int number = 0; number < 500; number++) must_be_integer(ask("INCR user:%d", number), 1);
    do {
        redisReply *page = ask("SCAN %s MATCH user:* COUNT 7", cursor);
        MUST(page && page->type == REDIS_REPLY_ARRAY && page->elements == 2);
        snprintf(cursor, sizeof cursor, "%s", page->element[0]->str);
        found += page->element[1]->elements;
        freeReplyObject(page);
    } while (strcmp(cursor, "0") != 0);
    MUST(found == 500);
}

static void restart(void) {
    char line[32];
    must_be_integer(ask("INCR kept"), 1);
    puts("restart");
    fflush(stdout);
    MUST(fgets(line, sizeof line, stdin) && strcmp(line, "restarted\n") == 0);
    MUST(ask("INCR kept") == NULL && context->err != 0);
    MUST(redisReconnect(context) == REDIS_OK);
    must_be_integer(ask("INCR kept"), 2);
}

int main(int count, char **arguments) {
    MUST(count == 2);
    struct timeval patience = {60, 0};
    context = redisConnectWithTimeout("127.0.0.1", atoi(arguments[1]), patience);
    redisContext *other = redisConnect("127.0.0.1", atoi(arguments[1]));
    MUST(context && context->err == 0 && other && other->err == 0);
    MUST(redisSetTimeout(context, patience) == REDIS_OK);
    counters();
    refusals();
    pipelines();
    transactions(other);
    walks();
    restart();
    redisFree(other);
    redisFree(context);
    puts("fine");
    return 0;
}
