"""Conversations whose last message goes on: chat templates cut where its text ends (given).

Source: `continue_final_message` of `apply_chat_template` in transformers 5.
"""

from collections.abc import Mapping

MARK = "NANOVLLM_END_OF_LAST_MESSAGE "  # the space shows whether the template trims messages
_CUT = (
    "{%% set last = messages[-1] %%}"
    "{%% if last.content is not string %%}"
    "{{ raise_exception('the last message has no text to go on with') }}{%% endif %%}"
    "{%% set messages = messages[:-1] + [dict(last, content=last.content ~ '%(mark)s')] %%}"
    "{%% set whole_text %%}\n%(source)s{%% endset %%}"
    "{%% if '%(word)s' not in whole_text %%}"
    "{{ raise_exception('the last message is not in the text') }}{%% endif %%}"
    "{%% set start = whole_text.rsplit('%(word)s', 1)[0] %%}"
    "{%% if '%(mark)s' in whole_text %%}{{ start }}{%% else %%}{{ start.rstrip() }}{%% endif %%}"
)


def open_ended(templates: Mapping[str, str]) -> dict[str, str]:
    """The same templates, but the text ends with that of the last message: a model goes on there.

    White space at its end stays, unless the template trims messages. Without the end of a turn
    there is nothing that begins another: `add_generation_prompt` must be false.

    >>> from nanovllm.tokenization.chat import ChatTemplate
    >>> made = open_ended({"default": "{% for m in messages %}<{{ m.content }}>{% endfor %}"})
    >>> ChatTemplate(made).render([{"role": "assistant", "content": "It is "}], False)
    '<It is '
    """
    return {
        name: _CUT % {"source": source, "mark": MARK, "word": MARK.strip()}
        for name, source in templates.items()
    }
