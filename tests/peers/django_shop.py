"""A shop on Django, as the documentation has sites of forms and JSON: log in behind a CSRF token, list, order, look up.

    django_shop.py uvicorn|hypercorn [CERT KEY]

Sessions are signed cookies, and there is no database. Each order is refused once with 503, as a service under pressure
would. What was served is counted at /stats.
"""

import collections
import json
import os
import secrets
import sys

import django
from django.conf import settings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

settings.configure(
    SECRET_KEY=secrets.token_hex(16),
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
    ],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.http import HttpResponse, JsonResponse  # noqa: E402
from django.middleware.csrf import get_token  # noqa: E402
from django.template import engines  # noqa: E402
from django.urls import path  # noqa: E402

FORM = engines["django"].from_string(
    '<form method="post">{% csrf_token %}<input name="user"><input name="password"></form>'
)
served = collections.Counter()
orders = {}
refused = set()


def login(request):
    served[f"{request.method} /login"] += 1
    if request.method == "GET":
        return HttpResponse(FORM.render({}, request))
    user = request.POST.get("user")
    if request.POST.get("password") != f"secret of {user}":
        return JsonResponse({"error": "wrong password"}, status=403)
    request.session["user"] = user
    token = secrets.token_hex(8)
    request.session["token"] = token
    return JsonResponse({"user": user, "token": token, "csrf": get_token(request)})


def signed_in(view):
    def checked(request, **arguments):
        wanted = f"Bearer {request.session.get('token')}"
        if "user" not in request.session or request.headers.get("authorization") != wanted:
            served["unauthorized"] += 1
            return JsonResponse({"error": "log in first"}, status=401)
        return view(request, **arguments)

    return checked


@signed_in
def items(request):
    served["items"] += 1
    page = int(request.GET.get("page", "1"))
    listed = [{"id": page * 10 + n, "in_stock": n % 2 == 0} for n in range(4)]
    return JsonResponse({"items": listed, "next": page + 1 if page < 3 else None})


@signed_in
def order(request):
    wanted = json.loads(request.body)
    if int(wanted["item"]) % 2 != 0:
        served["out of stock"] += 1
        return JsonResponse({"error": "out of stock"}, status=409)
    number = wanted["reference"]
    if number not in refused:
        refused.add(number)
        served["refused"] += 1
        return JsonResponse({"error": "try again"}, status=503)
    orders[number] = (request.session["user"], wanted["item"])
    served["ordered"] += 1
    answer = JsonResponse({"state": "open"}, status=201)
    answer["Location"] = f"/orders/{number}"
    return answer


@signed_in
def look_up(request, number):
    served["looked up"] += 1
    user, item = orders[number]
    if user != request.session["user"]:
        return JsonResponse({"error": "another user's"}, status=403)
    return JsonResponse({"state": "open", "item": item})


def stats(request):
    users = {user for user, _ in orders.values()}
    return JsonResponse({"served": served, "orders": len(orders), "users": len(users)})


urlpatterns = [
    path("login", login),
    path("items", items),
    path("orders", order),
    path("orders/<str:number>", look_up),
    path("stats", stats),
]

if __name__ == "__main__":
    from asgi import serve

    serve(get_asgi_application(), *sys.argv[1:])
