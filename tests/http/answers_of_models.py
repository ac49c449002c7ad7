"""The documented answers of language models and of clouds."""

from __future__ import annotations

from typing import Any

from headgate.http.rate_limit_headers import Answer, Budget
from tests.http.answer_rows import DAY, HOUR, MINUTE, Row, at, passed, throttled

OPENAI = "developers.openai.com/api/docs/guides/rate-limits"
ANTHROPIC = "platform.claude.com/docs/en/api/rate-limits"
UNIFIED = "no document; anthropics/claude-code, issue 12829"
AZURE = "openai/openai-dotnet, issue 838"
GROQ = "console.groq.com/docs/rate-limits"
CEREBRAS = "inference-docs.cerebras.ai/support/rate-limits"
MISTRAL = "no document; mistralai/client-ts, issue 169"
TOGETHER = "no document found"
OPENROUTER = "openrouter.ai/docs/api_reference/limits, without the unit"
DIGITALOCEAN = "docs.digitalocean.com/products/inference/reference/quota-specific-response-headers"
GEMINI = "no document; google-gemini/gemini-cli, issue 10925; diegosouzapw/OmniRoute, issue 9504"
GOOGLE = "developers.google.com/bid-manager/quotas"
GMAIL = "developers.google.com/gmail/api/guides/handle-errors"
BOTO = "boto/botocore, retries.standard"
DYNAMODB = "docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors"
COSMOS = "learn.microsoft.com/rest/api/cosmos-db/common-cosmosdb-rest-response-headers"
X = "docs.x.com/fundamentals/rate-limits"


def google(status: int, *details: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"error": {"code": status, "message": "Quota exceeded.", "details": details, **more}}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}


def quota_failure(name: str, value: str) -> dict[str, Any]:
    violation = {"quotaId": name, "quotaValue": value}
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}


PER_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
PER_MINUTE = "GenerateContentInputTokensPerModelPerMinute-FreeTier"


def reason(word: str) -> dict[str, Any]:
    return {"error": {"code": 403, "errors": [{"domain": "usageLimits", "reason": word}]}}


LANGUAGE_MODELS = [
    Row(
        "OpenAI",
        "a 200",
        OPENAI,
        200,
        passed(
            Budget("requests", 60, 59, 1.0, gradual=True),
            Budget("tokens", 150_000, 149_984, 360.0, unit="tokens", gradual=True),
        ),
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-tokens": "149984",
            "x-ratelimit-reset-tokens": "6m0s",
        },
    ),
    Row(
        "OpenAI",
        "Retry-After",
        OPENAI,
        429,
        throttled(3.0),
        {"retry-after": "3"},
        {"error": {"code": "rate_limit_exceeded"}},
    ),
    Row(
        "OpenAI",
        "retry-after-ms",
        "openai/openai-python, its retries",
        429,
        throttled(0.35),
        {"retry-after": "1", "retry-after-ms": "350"},
    ),
    Row(
        "OpenAI",
        "no requests left, without Retry-After: one is back before all are",
        OPENAI,
        429,
        throttled(0.12, Budget("requests", 500, 0, 60.0, gradual=True)),
        {
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "1m0s",
        },
    ),
    Row(
        "OpenAI",
        "no tokens left, without Retry-After",
        OPENAI,
        429,
        throttled(1.0, Budget("tokens", 30_000, 0, 432.0, unit="tokens", gradual=True)),
        {
            "x-ratelimit-limit-tokens": "30000",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "7m12s",
        },
    ),
    Row(
        "OpenAI",
        "no credit",
        OPENAI,
        429,
        Answer("exhausted"),
        {"retry-after": "3"},
        {"error": {"code": "insufficient_quota"}},
    ),
    Row(
        "OpenAI",
        "must not retry",
        "openai/openai-python, its retries",
        429,
        Answer("exhausted"),
        {"x-should-retry": "false"},
    ),
    Row(
        "Azure OpenAI",
        "whole seconds, and a negative remainder",
        AZURE,
        200,
        passed(Budget("tokens", reset=10.0, unit="tokens")),
        {
            "x-ratelimit-limit-tokens": "-1",
            "x-ratelimit-remaining-tokens": "-1",
            "x-ratelimit-reset-tokens": "10",
        },
    ),
    Row(
        "Anthropic",
        "a 429",
        ANTHROPIC,
        429,
        throttled(
            12.0,
            Budget("requests", 50, 0, 12.0, MINUTE, gradual=True),
            Budget("input-tokens", None, 29_000, 0.5, MINUTE, "tokens", gradual=True),
            Budget("priority-output-tokens", 8000, 6000, 9.0, MINUTE, "tokens", gradual=True),
        ),
        {
            "retry-after": "12",
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": "2026-11-21T18:30:12Z",
            "anthropic-ratelimit-input-tokens-remaining": "29000",
            "anthropic-ratelimit-input-tokens-reset": "2026-11-21T19:30:00.5+01:00",
            "anthropic-priority-output-tokens-limit": "8000",
            "anthropic-priority-output-tokens-remaining": "6000",
            "anthropic-priority-output-tokens-reset": "2026-11-21T18:30:09Z",
        },
    ),
    Row(
        "Anthropic",
        "fast mode",
        "platform.claude.com/docs/en/build-with-claude/fast-mode",
        200,
        Answer(
            budgets=(Budget("fast-input-tokens", 9000, 0, 12.0, MINUTE, "tokens", gradual=True),)
        ),
        {
            "anthropic-fast-input-tokens-limit": "9000",
            "anthropic-fast-input-tokens-remaining": "0",
            "anthropic-fast-input-tokens-reset": "2026-11-21T18:30:12Z",
        },
    ),
    Row("Anthropic", "overloaded", ANTHROPIC, 529, Answer("overloaded")),
    Row(
        "Anthropic",
        "a spend cap",
        ANTHROPIC,
        429,
        Answer("exhausted"),
        body={"error": {"details": {"error_code": "enforced_spend_limit_reached"}}},
    ),
    Row(
        "Anthropic",
        "no credit, as a 400",
        "platform.claude.com/docs/en/api/errors",
        400,
        Answer("exhausted"),
        body={"error": {"message": "Your credit balance is too low to go on."}},
    ),
    Row(
        "Anthropic by subscription",
        "an epoch",
        UNIFIED,
        429,
        throttled(
            7200.0,
            Budget("unified", None, 0, 7200.0, unit="usage"),
            Budget("unified-5h", None, None, 7200.0, 5 * HOUR, "usage"),
        ),
        {
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-reset": at(7200),
            "anthropic-ratelimit-unified-5h-reset": at(7200),
            "anthropic-ratelimit-unified-5h-utilization": "1.0",
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
        },
    ),
    Row(
        "Groq",
        "requests by the day, tokens by the minute",
        GROQ,
        200,
        passed(
            Budget("requests", 14_400, 14_370, 179.56, DAY, gradual=True),
            Budget("tokens", 18_000, 17_997, 7.66, MINUTE, "tokens", gradual=True),
        ),
        {
            "x-ratelimit-limit-requests": "14400",
            "x-ratelimit-remaining-requests": "14370",
            "x-ratelimit-reset-requests": "2m59.56s",
            "x-ratelimit-limit-tokens": "18000",
            "x-ratelimit-remaining-tokens": "17997",
            "x-ratelimit-reset-tokens": "7.66s",
        },
        host="api.groq.com",
    ),
    Row(
        "Cerebras",
        "the period in the name",
        CEREBRAS,
        200,
        passed(
            Budget("requests-day", 14_400, 14_399, 33_011.5, DAY),
            Budget("tokens-minute", 60_000, 0, 11.38, MINUTE, "tokens"),
        ),
        {
            "x-ratelimit-limit-requests-day": "14400",
            "x-ratelimit-remaining-requests-day": "14399",
            "x-ratelimit-reset-requests-day": "33011.5",
            "x-ratelimit-limit-tokens-minute": "60000",
            "x-ratelimit-remaining-tokens-minute": "0",
            "x-ratelimit-reset-tokens-minute": "11.38",
        },
    ),
    Row(
        "Mistral",
        "the period in the name",
        MISTRAL,
        200,
        passed(
            Budget("tokens-minute", 5_000_000, 4_999_911, per=MINUTE, unit="tokens"),
            Budget("req-minute", 720, 717, per=MINUTE),
        ),
        {
            "x-ratelimit-limit-tokens-minute": "5000000",
            "x-ratelimit-remaining-tokens-minute": "4999911",
            "x-ratelimit-tokens-query-cost": "52",
            "x-ratelimit-limit-req-minute": "720",
            "x-ratelimit-remaining-req-minute": "717",
        },
    ),
    Row(
        "Mistral",
        "the older names",
        MISTRAL,
        200,
        passed(
            Budget("minute", 500_000, 499_000, per=MINUTE, unit="tokens"),
            Budget("month", 10**9, 999_999_000, per=31 * DAY, unit="tokens"),
        ),
        {
            "x-ratelimitbysize-limit-minute": "500000",
            "x-ratelimitbysize-remaining-minute": "499000",
            "x-ratelimitbysize-limit-month": "1000000000",
            "x-ratelimitbysize-remaining-month": "999999000",
        },
    ),
    Row(
        "DigitalOcean",
        "an epoch, and the period in the name",
        DIGITALOCEAN,
        429,
        throttled(20.0, Budget("tokens-per-minute", 6000, 0, 20.0, MINUTE, "tokens")),
        {
            "x-ratelimit-limit-tokens-per-minute": "6000",
            "x-ratelimit-remaining-tokens-per-minute": "0",
            "x-ratelimit-reset-tokens-per-minute": at(20),
        },
    ),
    Row(
        "Together",
        "requests and tokens",
        TOGETHER,
        200,
        passed(
            Budget(limit=60, remaining=59, reset=1.0),
            Budget(limit=10_000, remaining=9000, unit="tokens"),
        ),
        {
            "x-ratelimit-limit": "60",
            "x-ratelimit-remaining": "59",
            "x-ratelimit-reset": "1",
            "x-tokenlimit-limit": "10000",
            "x-tokenlimit-remaining": "9000",
        },
    ),
    Row(
        "OpenRouter",
        "an epoch in milliseconds",
        OPENROUTER,
        429,
        throttled(30.0, Budget(limit=20, remaining=0, reset=30.0)),
        {
            "X-RateLimit-Limit": "20",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": f"{at(30)}000",
        },
    ),
    Row(
        "Gemini",
        "RetryInfo in the body",
        GEMINI,
        429,
        throttled(34.07, Budget(PER_MINUTE, 250_000, 0, None, MINUTE, "tokens")),
        body=google(429, quota_failure(PER_MINUTE, "250000"), RETRY_INFO),
    ),
    Row(
        "Gemini",
        "a quota of a day, whatever RetryInfo says",
        GEMINI,
        429,
        Answer("exhausted", None, (Budget(PER_DAY, 20, 0, None, DAY),)),
        body=google(429, quota_failure(PER_DAY, "20"), RETRY_INFO),
    ),
    Row(
        "Vertex",
        "a body that is a list",
        GEMINI,
        429,
        throttled(34.07),
        body=[google(429, RETRY_INFO)],
    ),
    Row(
        "Vertex",
        "the quota of a day in ErrorInfo",
        GEMINI,
        429,
        Answer("exhausted"),
        body=google(
            429,
            {"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "ProRequestsPerDay"}},
        ),
    ),
]

CLOUDS = [
    Row(
        "Google",
        "a 403 for a rate of the user",
        GOOGLE,
        403,
        throttled(),
        body=reason("userRateLimitExceeded"),
    ),
    Row("Google", "a 403 for a rate", GMAIL, 403, throttled(), body=reason("rateLimitExceeded")),
    Row(
        "Google",
        "a 403 for a quota of a day",
        GOOGLE,
        403,
        Answer("exhausted"),
        body=reason("dailyLimitExceeded"),
    ),
    Row("Google", "another 403", GMAIL, 403, Answer("passed"), body=reason("domainPolicy")),
    Row(
        "AWS",
        "a 400, the code in the body",
        DYNAMODB,
        400,
        throttled(),
        {"content-type": "application/x-amz-json-1.0"},
        {"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"},
    ),
    Row(
        "AWS",
        "a 400, the code in a header",
        BOTO,
        400,
        throttled(),
        {"x-amzn-ErrorType": "ThrottlingException:http://localhost"},
        {"message": "Rate exceeded"},
    ),
    Row(
        "AWS",
        "a 400 in XML",
        BOTO,
        400,
        throttled(),
        {"content-type": "text/xml"},
        "<ErrorResponse><Error><Code>Throttling</Code></Error></ErrorResponse>",
    ),
    Row(
        "AWS",
        "x-amz-retry-after, in milliseconds",
        BOTO,
        429,
        throttled(1.5),
        {"x-amz-retry-after": "1500"},
    ),
    Row(
        "AWS",
        "another 400",
        DYNAMODB,
        400,
        Answer("passed"),
        {},
        {"__type": "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException"},
    ),
    Row(
        "AWS", "Bedrock's 429", BOTO, 429, throttled(), {"x-amzn-ErrorType": "ThrottlingException"}
    ),
    Row(
        "AWS",
        "S3 slows down",
        BOTO,
        503,
        Answer("overloaded"),
        {},
        "<Error><Code>SlowDown</Code></Error>",
    ),
    Row(
        "Cosmos DB",
        "x-ms-retry-after-ms",
        COSMOS,
        429,
        throttled(0.033, cost=1),
        {"x-ms-retry-after-ms": "33", "x-ms-request-charge": "0.38"},
    ),
    Row(
        "Cosmos DB",
        "the cost of a call",
        COSMOS,
        200,
        passed(cost=3),
        {"x-ms-request-charge": "2.83"},
    ),
    Row(
        "Microsoft Graph",
        "Retry-After",
        "learn.microsoft.com/graph/throttling",
        429,
        throttled(10.0),
        {"Retry-After": "10"},
    ),
]
