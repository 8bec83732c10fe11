"""OpenAI's Responses API: responses, streamed, stored, in the background, continued."""
