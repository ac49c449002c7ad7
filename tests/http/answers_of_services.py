"""The documented answers of other services."""

from __future__ import annotations

from headgate.http.rate_limit_headers import Answer, Budget
from tests.http.answer_rows import DAY, HOUR, MINUTE, Row, at, passed, throttled

GITHUB = "docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api"
GITHUB_GRAPHQL = "docs.github.com/graphql/overview/rate-limits-and-query-limits-for-the-graphql-api"
TWITCH = "dev.twitch.tv/docs/api/guide"
GITLAB = "docs.gitlab.com/administration/settings/user_and_ip_rate_limits"
REDDIT = "no document; r/redditdev, 'Formal ratelimiting headers'"
TELEGRAM = "core.telegram.org/bots/api#responseparameters"
JIRA = "developer.atlassian.com/cloud/jira/platform/rate-limiting"
HUBSPOT = "developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines"
SENTRY = "docs.sentry.io/api/ratelimits"
LINEAR = "linear.app/developers/rate-limiting"
DATADOG = "docs.datadoghq.com/api/latest/rate-limits"
KONG = "developer.konghq.com/plugins/rate-limiting; Kong/kong, pull request 1235"
SHOPIFY = "shopify.dev/docs/api/usage/limits"
SHOPIFY_GRAPHQL = "shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits"
STRIPE = "docs.stripe.com/rate-limits"
DISCORD = "docs.discord.com/developers/topics/rate-limits"
SLACK = "docs.slack.dev/apis/web-api/rate-limits"
X = "docs.x.com/fundamentals/rate-limits"
DOCKER = "docs.docker.com/docker-hub/usage/pulls"
XERO = "developer.xero.com/faq/limits"
RESEND = "resend.com/changelog/api-rate-limit"
SEEN = "no document; seen in the wild"

CORE = Budget("core", 5000, 0, 90.0, HOUR)
CORE_HEADERS = {
    "x-ratelimit-limit": "5000",
    "x-ratelimit-remaining": "0",
    "x-ratelimit-reset": at(90),
    "x-ratelimit-resource": "core",
    "x-github-request-id": "C0FE",
}
SECONDARY = {"message": "You have exceeded a secondary rate limit. Please wait."}
SHOPIFY_COST = {
    "requestedQueryCost": 752,
    "actualQueryCost": None,
    "throttleStatus": {
        "maximumAvailable": 2000.0,
        "currentlyAvailable": 100,
        "restoreRate": 100.0,
    },
}
SHOPIFY_BUDGET = Budget("cost", 2000, 100, 19.0, 20.0, "points", gradual=True)


SERVICES = [
    Row(
        "GitHub",
        "the primary limit",
        GITHUB,
        403,
        throttled(90.0, CORE),
        CORE_HEADERS,
    ),
    Row("GitHub", "the primary limit, as a 429", GITHUB, 429, throttled(90.0, CORE), CORE_HEADERS),
    Row(
        "GitHub",
        "searches count by the minute",
        GITHUB,
        200,
        passed(Budget("search", 30, 18, 60.0, MINUTE)),
        {
            "x-ratelimit-limit": "30",
            "x-ratelimit-remaining": "18",
            "x-ratelimit-reset": at(60),
            "x-ratelimit-resource": "search",
        },
        host="api.github.com",
    ),
    Row("GitHub", "the secondary limit", GITHUB, 403, throttled(60.0), body=SECONDARY),
    Row(
        "GitHub",
        "the secondary limit with Retry-After",
        GITHUB,
        403,
        throttled(7.0),
        {"retry-after": "7"},
        SECONDARY,
    ),
    Row(
        "GitHub",
        "another 403",
        GITHUB,
        403,
        passed(Budget("core", 5000, 4999, 90.0, HOUR)),
        {**CORE_HEADERS, "x-ratelimit-remaining": "4999"},
        {"message": "Resource not accessible"},
    ),
    Row(
        "GitHub GraphQL",
        "the limit in the body of a 200",
        GITHUB_GRAPHQL,
        200,
        passed(Budget("graphql", 5000, 4994, 600.0, HOUR, "points"), cost=6),
        {},
        {
            "data": {
                "rateLimit": {
                    "cost": 6,
                    "limit": 5000,
                    "remaining": 4994,
                    "resetAt": "2026-11-21T18:40:00Z",
                }
            }
        },
    ),
    Row(
        "GitHub GraphQL",
        "a refusal with status 200",
        GITHUB_GRAPHQL,
        200,
        throttled(90.0, Budget("graphql", 5000, 0, 90.0, HOUR, "points")),
        {**CORE_HEADERS, "x-ratelimit-resource": "graphql"},
        {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]},
    ),
    Row(
        "GitLab",
        "an epoch",
        GITLAB,
        429,
        throttled(60.0, Budget("throttle_authenticated_api", 600, 0, 60.0, MINUTE)),
        {
            "RateLimit-Limit": "600",
            "RateLimit-Name": "throttle_authenticated_api",
            "RateLimit-Observed": "601",
            "RateLimit-Remaining": "0",
            "RateLimit-Reset": at(60),
        },
    ),
    Row(
        "Twitch",
        "an epoch",
        TWITCH,
        429,
        throttled(42.0, Budget(limit=800, remaining=0, reset=42.0, per=MINUTE)),
        {"Ratelimit-Limit": "800", "Ratelimit-Remaining": "0", "Ratelimit-Reset": at(42)},
        host="api.twitch.tv",
    ),
    Row(
        "Reddit",
        "floats",
        REDDIT,
        200,
        passed(Budget(remaining=599, reset=345.0, per=600.0)),
        {
            "x-ratelimit-remaining": "599.0",
            "x-ratelimit-used": "1",
            "x-ratelimit-reset": "345",
        },
        host="oauth.reddit.com",
    ),
    Row(
        "Reddit",
        "two different remainders are malformed",
        SEEN,
        200,
        passed(Budget(reset=345.0)),
        {"x-ratelimit-remaining": "991, 98", "x-ratelimit-reset": "345"},
    ),
    Row(
        "Telegram",
        "the wait in the body",
        TELEGRAM,
        429,
        throttled(35.0),
        body={"ok": False, "error_code": 429, "parameters": {"retry_after": 35}},
    ),
    Row(
        "Jira",
        "an ISO date without seconds",
        JIRA,
        429,
        throttled(1800.0, Budget(limit=350, remaining=0, reset=1800.0), scope="endpoint"),
        {
            "X-RateLimit-Limit": "350",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": "2026-11-21T19:00Z",
            "RateLimit-Reason": "jira-burst-based",
        },
    ),
    Row(
        "Jira",
        "the points of an hour",
        JIRA,
        429,
        throttled(
            600.0,
            Budget("global-app-quota", 65_000, 0, 600.0, HOUR, "points"),
            scope="service",
        ),
        {
            "Beta-RateLimit-Policy": '"global-app-quota";q=65000;w=3600',
            "Beta-RateLimit": '"global-app-quota";r=0;t=600',
            "RateLimit-Reason": "jira-quota-global-based",
        },
    ),
    Row(
        "Jira",
        "an HTTP date",
        SEEN,
        429,
        throttled(30.0, Budget(remaining=0, reset=30.0)),
        {
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": "Sat, 21 Nov 2026 18:30:30 GMT",
        },
    ),
    Row(
        "HubSpot",
        "the limit of 10 seconds",
        HUBSPOT,
        429,
        throttled(
            10.0,
            Budget("daily", 250_000, 249_000, per=DAY),
            Budget(limit=100, remaining=0, per=10.0),
        ),
        {
            "X-HubSpot-RateLimit-Daily": "250000",
            "X-HubSpot-RateLimit-Daily-Remaining": "249000",
            "X-HubSpot-RateLimit-Interval-Milliseconds": "10000",
            "X-HubSpot-RateLimit-Max": "100",
            "X-HubSpot-RateLimit-Remaining": "0",
        },
    ),
    Row(
        "HubSpot",
        "the limit of a search, in the body alone",
        "HubSpot/hubspot-api-nodejs, RetryDecorator",
        429,
        throttled(1.0),
        body={"errorType": "RATE_LIMIT", "policyName": "SECONDLY"},
    ),
    Row(
        "HubSpot",
        "the limit of a day",
        HUBSPOT,
        429,
        Answer("exhausted"),
        body={"errorType": "RATE_LIMIT", "policyName": "DAILY"},
    ),
    Row(
        "Sentry",
        "an epoch, and concurrent requests",
        SENTRY,
        429,
        throttled(
            5.0,
            Budget(limit=40, remaining=0, reset=5.0),
            Budget("concurrent", 25, 24, unit="concurrent-requests"),
            scope="endpoint",
        ),
        {
            "X-Sentry-Rate-Limit-Limit": "40",
            "X-Sentry-Rate-Limit-Remaining": "0",
            "X-Sentry-Rate-Limit-Reset": at(5),
            "X-Sentry-Rate-Limit-ConcurrentLimit": "25",
            "X-Sentry-Rate-Limit-ConcurrentRemaining": "24",
        },
    ),
    Row(
        "Linear",
        "requests and complexity, as a 400",
        LINEAR,
        400,
        throttled(
            600.0,
            Budget("requests", 2500, 2400, 1200.0, HOUR),
            Budget("complexity", 3_000_000, 0, 600.0, HOUR, "points"),
            cost=12,
        ),
        {
            "X-Complexity": "12",
            "X-RateLimit-Requests-Limit": "2500",
            "X-RateLimit-Requests-Remaining": "2400",
            "X-RateLimit-Requests-Reset": f"{at(1200)}000",
            "X-RateLimit-Complexity-Limit": "3000000",
            "X-RateLimit-Complexity-Remaining": "0",
            "X-RateLimit-Complexity-Reset": f"{at(600)}000",
        },
        {"errors": [{"message": "Rate limit", "extensions": {"code": "RATELIMITED"}}]},
    ),
    Row(
        "Datadog",
        "the period in a header",
        DATADOG,
        429,
        throttled(12.0, Budget("logs_list", 300, 0, 12.0, 3600.0)),
        {
            "X-RateLimit-Limit": "300",
            "X-RateLimit-Period": "3600",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": "12",
            "X-RateLimit-Name": "logs_list",
        },
    ),
    Row(
        "Kong",
        "one limit in two forms",
        KONG,
        200,
        passed(
            Budget("minute", 10, 9, 47.0, MINUTE),
            Budget("hour", 200, 150, per=HOUR),
        ),
        {
            "X-RateLimit-Limit-Minute": "10",
            "X-RateLimit-Remaining-Minute": "9",
            "X-RateLimit-Limit-Hour": "200",
            "X-RateLimit-Remaining-Hour": "150",
            "RateLimit-Limit": "10",
            "RateLimit-Remaining": "9",
            "RateLimit-Reset": "47",
        },
    ),
    Row(
        "Shopify REST",
        "a leaky bucket",
        SHOPIFY,
        429,
        throttled(2.0, Budget(limit=40, remaining=8)),
        {"X-Shopify-Shop-Api-Call-Limit": "32/40", "Retry-After": "2.0"},
    ),
    Row("Shopify", "a 430", SHOPIFY, 430, throttled(60.0), {"Retry-After": "60"}),
    Row(
        "Shopify GraphQL",
        "throttled with status 200",
        SHOPIFY_GRAPHQL,
        200,
        throttled(6.52, SHOPIFY_BUDGET),
        {},
        {
            "errors": [{"extensions": {"code": "THROTTLED"}}],
            "extensions": {"cost": SHOPIFY_COST},
        },
    ),
    Row(
        "Shopify GraphQL",
        "the cost in the body of a 200",
        SHOPIFY_GRAPHQL,
        200,
        passed(SHOPIFY_BUDGET, cost=12),
        {},
        {"extensions": {"cost": {**SHOPIFY_COST, "actualQueryCost": 12}}},
    ),
    Row(
        "Stripe",
        "a limit of the account",
        STRIPE,
        429,
        throttled(scope="service"),
        {"Stripe-Rate-Limited-Reason": "global-rate"},
    ),
    Row(
        "Stripe",
        "a limit of an endpoint",
        STRIPE,
        429,
        throttled(scope="endpoint"),
        {"Stripe-Rate-Limited-Reason": "endpoint-concurrency"},
    ),
    Row(
        "Stripe",
        "a lock, which is no limit",
        STRIPE,
        429,
        Answer("overloaded"),
        body={"error": {"code": "lock_timeout"}},
    ),
    Row(
        "Discord",
        "the limit of a route",
        DISCORD,
        429,
        throttled(65.0, Budget("abcd1234", 10, 0, 64.57), scope="endpoint"),
        {
            "x-ratelimit-limit": "10",
            "x-ratelimit-remaining": "0",
            "x-ratelimit-reset": at(99),
            "x-ratelimit-reset-after": "64.57",
            "x-ratelimit-bucket": "abcd1234",
            "x-ratelimit-scope": "user",
            "retry-after": "65",
        },
        {"message": "You are being rate limited.", "retry_after": 64.57, "global": False},
    ),
    Row(
        "Discord",
        "the global limit, in the headers",
        DISCORD,
        429,
        throttled(2.0, scope="service"),
        {"retry-after": "2", "x-ratelimit-global": "true", "x-ratelimit-scope": "global"},
    ),
    Row(
        "Discord",
        "the global limit, in the body",
        DISCORD,
        429,
        throttled(1.3, scope="service"),
        body={"retry_after": 1.3, "global": True},
    ),
    Row("Slack", "Retry-After", SLACK, 429, throttled(30.0), {"Retry-After": "30"}),
    Row(
        "X",
        "an epoch",
        X,
        429,
        throttled(900.0, Budget(limit=15, remaining=0, reset=900.0)),
        {
            "x-rate-limit-limit": "15",
            "x-rate-limit-remaining": "0",
            "x-rate-limit-reset": at(900),
        },
    ),
    Row(
        "Xero",
        "the limit of an app over all organisations",
        XERO,
        429,
        throttled(
            23.0,
            Budget("minute", None, 40, None, MINUTE),
            Budget("day", None, 4700, None, DAY),
            Budget("app-minute", None, 0, None, MINUTE),
            scope="service",
        ),
        {
            "Retry-After": "23",
            "X-Rate-Limit-Problem": "appminute",
            "X-MinLimit-Remaining": "40",
            "X-DayLimit-Remaining": "4700",
            "X-AppMinLimit-Remaining": "0",
        },
    ),
    Row("X", "a 420 of old", SEEN, 420, throttled(60.0), {"Retry-After": "60"}),
    Row(
        "Docker Hub",
        "the window beside the number",
        DOCKER,
        200,
        passed(Budget(limit=100, remaining=76, per=21_600.0)),
        {"ratelimit-limit": "100;w=21600", "ratelimit-remaining": "76;w=21600"},
    ),
    Row(
        "Resend",
        "seconds",
        RESEND,
        429,
        throttled(1.0, Budget(limit=2, remaining=0, reset=1.0)),
        {
            "ratelimit-limit": "2",
            "ratelimit-remaining": "0",
            "ratelimit-reset": "1",
            "retry-after": "1",
        },
    ),
]
