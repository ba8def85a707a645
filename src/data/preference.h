/* Rows that say which answer is better, each turned into one of four kinds that the encoder knows:
 *   DATA_PAIR          prompt, chosen, rejected: three strings
 *   DATA_PAIR_CHAT     the same as lists of messages; tools and the like beside them stay
 *   DATA_JUDGED        prompt, completion, two strings, and label, true or false
 *   DATA_JUDGED_CHAT   likewise with lists of messages
 *
 * Pairs are written with chosen and rejected (or chosen_response, rejected_response) and
 *   prompt                          TRL: all strings, or all lists of messages
 *   nothing else                    TRL: the prompt is what both begin with: characters, or messages
 *   conversations                   LLaMA-Factory: both are a turn {from, value}
 *   messages                        axolotl: both are a string, a message, or a list, of which the last is taken
 *   instruction; also input, history, system        LLaMA-Factory's Alpaca
 *   question, input, prompt; also system            axolotl
 * Answers by themselves with label or kto_tag and
 *   prompt, completion              TRL
 *   instruction, output; conversations; messages    LLaMA-Factory; of conversations the last message is the answer */
#ifndef RH_DATA_PREFERENCE_H
#define RH_DATA_PREFERENCE_H

#include "data/form.h"

enum data_preference { DATA_NO_PREFERENCE, DATA_IS_PAIR, DATA_IS_JUDGED };
/* What a row looks like. */
enum data_preference data_preference_of(const json_t *row);
/* Converts *row, which is to be of this kind. `where` names it in faults. */
int data_preference_convert(enum data_preference is, const struct data_tags *tags, int has_template, const char *where, json_t **row,
                            enum data_kind *kind) RH_MUST;
/* Appends the keys of `row` that are not read, as data_form_list_unread does. */
int data_preference_list_unread(enum data_preference is, const json_t *row, struct rh_text *out) RH_MUST;

#endif
