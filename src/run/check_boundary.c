/* Boundaries that stay in memory. The dispatcher gives each a buffer when its copy is issued, so lanes name boundaries by number, not by
 * buffer. Proved here: in the order of positions there are never more boundaries than buffers. Then the dispatcher, which keeps buffers
 * back for the oldest slot (run/dispatcher_buffers.c), can always go on. */
#include "run/boundary.h"
#include "run/check_internal.h"

static int readers_of(const struct rh_check *check)
{
	const struct rh_command *command = check->command;
	const struct check_call *call = check_call_of(check, command->step);
	if (command->block == RH_BOUNDARY_GRADIENT)
		return 1;
	return rh_boundary_readers(check->options.plan, call && call->call.trains, command->lo);
}

void check_boundary(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	int comes = command->to.room == RH_ROOM_HOST_BOUNDARY;
	const struct rh_place *place = comes ? &command->to : &command->from;
	if (check_failed(check) || !check->options.boundary_buffers || place->room != RH_ROOM_HOST_BOUNDARY)
		return;
	int *readers = &check->readers[place->number];
	if (!comes) {
		if (*readers <= 0)
			check_fault(check, -1, "reads a boundary once more than there are readers");
		check->live -= --*readers == 0;
		return;
	}
	if (*readers > 0)
		check_fault(check, -1, "overwrites a boundary that %d commands have still to read", *readers);
	*readers = readers_of(check);
	check->live += *readers > 0;
	if (check->live > check->options.boundary_buffers)
		check_fault(check, -1, "needs a buffer more than the %d that the plan gives boundaries", check->options.boundary_buffers);
}
