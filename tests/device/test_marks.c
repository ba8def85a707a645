/* Marks in a stream: what stands for a command comes no earlier than it, and a stream that stops at a random command is found to be no
 * farther, and where it is waited for no less far, than it has come. */
#include "check.h"

#include "core/alloc.h"
#include "device/marks.h"

/* A device whose events remember the command before them; how far its stream has come is set by the test. */
struct fake_event {
	struct rh_event base;
	int64_t issued;
};
static int64_t issued, come, fails;

static int fake_create(struct rh_device *device, enum rh_event_use use, struct rh_event **out)
{
	struct fake_event *event = rh_alloc(1, sizeof *event);
	assert_non_null(event);
	assert_int_equal(use, RH_EVENT_HOST);
	event->base.ops = device->ops;
	*out = &event->base;
	return 0;
}

static void fake_destroy(struct rh_event *event)
{
	rh_free(event);
}

static int fake_record(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	(void)device;
	assert_int_equal(stream, RH_STREAM_GRADIENTS);
	((struct fake_event *)event)->issued = issued;
	return 0;
}

static int fake_query(struct rh_event *event)
{
	return fails ? -EIO : ((struct fake_event *)event)->issued <= come;
}

static int fake_sync(struct rh_event *event)
{
	come = come > ((struct fake_event *)event)->issued ? come : ((struct fake_event *)event)->issued;
	return 0;
}

static const struct rh_device_ops ops = {.event_create = fake_create,
                                         .event_destroy = fake_destroy,
                                         .record = fake_record,
                                         .event_query = fake_query,
                                         .event_sync = fake_sync};

static int64_t event_of(const struct rh_stream_mark *mark)
{
	return ((const struct fake_event *)mark->event)->issued;
}

static void test_marks_tell_how_far_a_stream_has_come(void **state)
{
	(void)state;
	struct rh_device device = {.ops = &ops};
	struct rh_stream_marks marks;
	uint64_t seed = check_seed();
	const struct rh_stream_mark *mark;
	issued = come = fails = 0;
	check_ok(rh_marks_create(&device, RH_STREAM_GRADIENTS, &marks));
	for (int i = 0; i < 100000; i++) {
		uint64_t drawn = check_random(&seed);
		marks.issued = issued += (int64_t)(drawn % 3);
		if (drawn / 3 % 5 == 0)
			check_ok(rh_marks_record(&marks, 2 * issued));
		if (drawn / 15 % 7 == 0 && issued) {
			int64_t wanted = issued - (int64_t)(drawn / 105 % (uint64_t)(issued < 600 ? issued : 600));
			check_ok(rh_marks_find(&marks, wanted, 2 * issued, &mark));
			assert_true(mark->issued >= wanted && mark->issued <= issued && event_of(mark) == mark->issued);
		}
		come += (int64_t)(drawn / 1000 % 3) * (issued > come);
		come = come > issued ? issued : come;
		int64_t before = marks.latest_reached.issued;
		int farther = rh_marks_look(&marks);
		assert_true(farther || marks.latest_reached.issued == before);
		assert_true(marks.latest_reached.issued <= come && marks.latest_reached.launched == 2 * marks.latest_reached.issued);
		if (drawn / 3000 % 50 == 0 && marks.reached < marks.recorded) {
			check_ok(rh_marks_await(&marks));
			assert_true(marks.latest_reached.issued >= before && marks.latest_reached.issued <= come);
		}
	}
	come = issued;
	assert_true(rh_marks_look(&marks) >= 0);
	assert_int_equal(marks.reached, marks.recorded);
	assert_int_equal(rh_marks_latest(&marks).issued, marks.latest_reached.issued);
	check_ok(rh_marks_record(&marks, 0));
	fails = 1;
	assert_int_equal(rh_marks_look(&marks), -EIO);
	rh_marks_destroy(&marks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_marks_tell_how_far_a_stream_has_come)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
