/* Messages of the caller's on the lanes to and from the boxes beside this one (struct rh_letters, struct rh_follower). They have no waits:
 * whether a letter may be posted is the caller's to say. */
#include "run/lower.h"

void lower_letter(struct lowering *to, const struct rh_letter *letter)
{
	int sends = letter->way == RH_LETTER_TO_BELOW || letter->way == RH_LETTER_TO_ABOVE;
	struct rh_command command =
	        lower_command_on(sends ? RH_COMMAND_SEND_LETTER : RH_COMMAND_RECEIVE_LETTER, to->links + (int)letter->way, letter->step);
	command.letter = letter->kind;
	lower_add(to, &command);
}

void lower_follower(struct lowering *to, enum lower_link way, int64_t step)
{
	const struct rh_command command = lower_command_on(RH_COMMAND_RECEIVE_LETTER, to->links + (int)way, step);
	lower_add(to, &command);
}
