#include "modes/boxes/box_flush.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "modes/boxes/box_table.h"

#include <math.h>
#include <string.h>

static struct rh_box *box_of(const struct box_flush *flush)
{
	return &flush->session->box;
}

int box_flush_open(struct box_flush *flush, int64_t micro_batches)
{
	flush->own = rh_optimizer_squares(flush->session->store, NULL);
	flush->tokens = rh_alloc((size_t)micro_batches, sizeof *flush->tokens);
	int rc = box_feed_open(&flush->feed);
	return rc ? rc : flush->tokens ? 0 : -ENOMEM;
}

void box_flush_close(struct box_flush *flush)
{
	if (flush->feed.box)
		box_feed_free(&flush->feed);
	rh_free(flush->tokens);
	rh_free(flush->taken);
	rh_free(flush->given);
}

int64_t box_flush_squares(const struct rh_model *model, int lo)
{
	int64_t count = 0;
	for (int l = lo; l < model->layers; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = model->layer[l].block[which];
			if (b >= 0 && model->block[b].trainable && model->block[b].uses == 1) /* else it counts with the embedding */
				count += model->block[b].tensors;
		}
	return count;
}

/* Of the message from above, or to below. */
static int64_t squares_bytes(int64_t squares)
{
	return squares * (int64_t)sizeof(double);
}

static int64_t taken_bytes(const struct box_flush *flush)
{
	return (int64_t)sizeof(struct box_words) + squares_bytes(box_of(flush)->squares_above) + flush->results_bytes;
}

static int64_t given_bytes(const struct box_flush *flush)
{
	return taken_bytes(flush) + squares_bytes(flush->own);
}

static double *squares_of(char *message)
{
	return (double *)(void *)(message + sizeof(struct box_words));
}

char *box_flush_results(const struct box_flush *flush)
{
	return (char *)(squares_of(flush->taken) + box_of(flush)->squares_above);
}

/* What comes from above: the squares, and the first pieces of a table. Returns how many messages. */
static int follow_above(struct box_flush *flush, int64_t step)
{
	int count = 0;
	if (box_of(flush)->link_above)
		flush->above[count++] = (struct rh_follower){box_tag_of(step, BOX_SQUARES), flush->taken, taken_bytes(flush)};
	flush->pieces[1] = box_table_first(flush->session, RH_LETTER_FROM_ABOVE, box_tag_of(step, BOX_TABLE), flush->above + count);
	return count + (int)flush->pieces[1];
}

static struct rh_follower norm_message(struct box_flush *flush, int64_t step)
{
	return (struct rh_follower){box_tag_of(step, BOX_RESULTS), &flush->up, sizeof flush->up};
}

/* What comes from below: the first pieces, and, where these are all, the norm. */
static int follow_below(struct box_flush *flush, int64_t step)
{
	int count = box_table_first(flush->session, RH_LETTER_FROM_BELOW, box_tag_of(step, BOX_TABLE), flush->below);
	flush->pieces[0] = count;
	if (box_of(flush)->link_below && box_table_is_first(flush->session))
		flush->below[count++] = norm_message(flush, step);
	return count;
}

int box_flush_begin(struct box_flush *flush, int64_t step, int64_t results_bytes)
{
	flush->results_bytes = results_bytes;
	int rc = rh_grow(&flush->taken, &flush->taken_capacity, (size_t)taken_bytes(flush), 1);
	if (!rc)
		rc = rh_grow(&flush->given, &flush->given_capacity, (size_t)given_bytes(flush), 1);
	if (rc)
		return rc;
	/* a virtual link fills nothing */
	memset(flush->taken, 0, sizeof(struct box_words) + (size_t)squares_bytes(box_of(flush)->squares_above));
	rh_executor_follow(flush->session->executor, RH_LETTER_FROM_ABOVE, flush->above, follow_above(flush, step));
	rh_executor_follow(flush->session->executor, RH_LETTER_FROM_BELOW, flush->below, follow_below(flush, step));
	return 0;
}

/* The table's pieces come behind the squares and before the norm. before: as box_table_exchange has it. */
static int exchange(struct box_flush *flush, int64_t step, const int64_t before[])
{
	struct rh_box *box = box_of(flush);
	const struct rh_follower norm = norm_message(flush, step);
	int rc = box->table_bytes ? box_table_exchange(flush->session, box_tag_of(step, BOX_TABLE), before) : 0;
	if (rc || !box->link_below || box_table_is_first(flush->session))
		return rc;
	rc = rh_link_receive(box->link_below, norm.tag, norm.bytes, norm.size);
	flush->up_number = box->link_below->receives;
	return rc;
}

static int is_asked(const struct box_requests *requests)
{
	return requests->stop || requests->save || requests->rest;
}

/* Posts the receives of the next step's data, and of its first activations. */
static int expect_next(struct box_flush *flush, int64_t step, const struct box_flush_end *end)
{
	const char *message;
	int rc = box_feed_expect(&flush->feed, step, &message);
	if (rc)
		return rc;
	int64_t count = end->next(end->context, step, message, flush->tokens);
	return count < 0 ? (int)count : rh_executor_expect(flush->session->executor, step, flush->tokens, count);
}

static void add_requests(struct box_requests *to, const struct box_requests *from)
{
	to->stop |= from->stop;
	to->save |= from->save;
	to->rest |= from->rest;
}

/* Down: the words of the boxes above are in end->words then. received: the link's messages up to that from above. */
static int pass_down(struct box_flush *flush, int64_t step, int64_t received, struct box_flush_end *end)
{
	struct rh_box *box = box_of(flush);
	int64_t above = squares_bytes(box->squares_above);
	int rc = box->link_above ? box->link_above->ops->wait(box->link_above, 0, received) : 0;
	if (!rc)
		rc = rh_updater_squares(flush->session->updater, squares_of(flush->given));
	if (rc)
		return rc;
	if (box->link_above) {
		const struct box_words *words = (const struct box_words *)(const void *)flush->taken;
		add_requests(&end->words.requests, &words->requests);
		end->words.saved = rh_min(end->words.saved, words->saved);
	}
	memcpy(flush->given, &end->words, sizeof end->words);
	memcpy(squares_of(flush->given) + flush->own, squares_of(flush->taken), (size_t)(above + flush->results_bytes));
	return rh_box_give(box, box->link_below, box_tag_of(step, BOX_SQUARES), flush->given, given_bytes(flush));
}

/* Box 1 has all squares, those of the lowest layers first. */
static double norm_of(struct box_flush *flush)
{
	const double *squares = squares_of(flush->given);
	double sum = 0;
	for (int64_t i = 0; i < flush->own + box_of(flush)->squares_above; i++)
		sum += squares[i];
	return sqrt(sum);
}

/* Up: end->words are what all boxes know. */
static int pass_up(struct box_flush *flush, int64_t step, struct box_flush_end *end)
{
	struct rh_box *box = box_of(flush);
	int rc = box->link_below ? box->link_below->ops->wait(box->link_below, 0, flush->up_number) : 0;
	if (!rc && !box->link_below)
		end->words.norm = norm_of(flush);
	if (!rc && box->link_below)
		end->words = flush->up;
	return rc ? rc : rh_box_give(box, box->link_above, box_tag_of(step, BOX_RESULTS), &end->words, sizeof end->words);
}

/* What this box tells the others of the step, and what it learns: in end->words. Box 1 counts the table's squares, for which it needs the
 * whole sum. */
static int share(struct box_flush *flush, int64_t step, struct box_flush_end *end)
{
	struct rh_box *box = box_of(flush);
	int64_t above = box->link_above ? box->link_above->receives : 0, below = box->link_below ? box->link_below->receives : 0;
	int is_posted = box_table_is_first(flush->session), expects = end->continues && box->link_below, rc = 0;
	const int64_t before[] = {
	        [RH_LETTER_FROM_BELOW] = below - is_posted - flush->pieces[0], [RH_LETTER_FROM_ABOVE] = above - flush->pieces[1]};
	flush->up_number = below;
	if (expects && is_posted)
		rc = expect_next(flush, step + 1, end);
	if (!rc && !box->number)
		rc = exchange(flush, step, before);
	if (!rc)
		rc = pass_down(flush, step, before[RH_LETTER_FROM_ABOVE], end);
	if (!rc && box->number)
		rc = exchange(flush, step, before);
	if (!rc && expects && !is_posted)
		rc = expect_next(flush, step + 1, end);
	return rc ? rc : pass_up(flush, step, end);
}

int box_flush_end(struct box_flush *flush, int64_t step, struct box_flush_end *end)
{
	end->continues &= !is_asked(&flush->heard);
	int rc = share(flush, step, end);
	if (rc)
		return rc;
	struct box_requests heard = end->words.requests;
	end->words.requests = flush->heard;
	if (!end->continues)
		add_requests(&end->words.requests, &heard);
	flush->heard = end->continues ? heard : (struct box_requests){0};
	rh_updater_give_norm(flush->session->updater, end->words.norm);
	return box_table_settle(flush->session);
}
