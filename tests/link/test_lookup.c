/* Names that cannot be looked up for a while: where a home's line is down, so are its name servers. */
#include "ends.h"
#include "relay.h"

#include <dlfcn.h>
#include <netdb.h>

static const struct rh_link_timing hasty = {.heartbeat_ns = 50000000, .timeout_ns = 300000000, .give_up_ns = 20000000000};

static atomic_int fault, lookups; /* getaddrinfo's code for box1.home, 0: it is found; and how often it was asked */

/* In libc's place. */
int getaddrinfo(const char *restrict host, const char *restrict port, const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
	int (*of_libc)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
	*(void **)&of_libc = dlsym(RTLD_NEXT, "getaddrinfo");
	int is_home = host && !strcmp(host, "box1.home");
	lookups += is_home;
	return is_home && fault ? fault : of_libc(is_home ? "127.0.0.1" : host, port, hints, out);
}

static void wait_for_lookups(int count)
{
	enum { MOST_MS = 20000 };
	int until = lookups + count;
	for (int ms = 0; lookups < until; ms++) {
		assert_true(ms < MOST_MS);
		usleep(1000);
	}
}

/* Before the boxes have met, and, whatever the fault is, once they have. */
static void test_lookup_that_fails_for_a_while_ends_nothing(void **state)
{
	(void)state;
	struct relay relay;
	struct ends ends;
	char through[32];
	relay_open(&relay, 0, check_seed());
	snprintf(through, sizeof through, "box1.home:%d", relay.port);
	fault = EAI_AGAIN;
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.timing = hasty}, through, &ends);
	relay_start(&relay, ends.port);
	wait_for_lookups(2);
	fault = 0;
	ends_exchange_one(&ends, 1);
	fault = EAI_NONAME;
	relay.is_down = 1;
	wait_for_lookups(2);
	relay.is_down = 0;
	fault = 0;
	ends_exchange_one(&ends, 2);
	ends_close(&ends);
	relay_close(&relay);
}

static void test_lookup_of_a_name_that_is_none_ends_the_link_at_once(void **state)
{
	(void)state;
	struct rh_link *link;
	fault = EAI_NONAME;
	check_ok(rh_tcp_open(&(struct rh_tcp_options){.address = "box1.home:4711",
	                                              .identity = ends_keys.path[1],
	                                              .peer = ends_keys.hash[0],
	                                              .greeting = "",
	                                              .messages = 1,
	                                              .timing = hasty},
	                     &link));
	assert_int_equal(link->ops->wait(link, 1, 0), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "box1.home:4711"));
	rh_link_close(link);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_lookup_that_fails_for_a_while_ends_nothing),
	        cmocka_unit_test(test_lookup_of_a_name_that_is_none_ends_the_link_at_once),
	};
	return cmocka_run_group_tests(tests, ends_open_keys, ends_remove_keys);
}
