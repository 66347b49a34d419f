"""`elastane cost` and `elastane price`: show a job's costs and savings, and set its prices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JobArgument,
    JsonOption,
    MasterOption,
    TimeoutOption,
    command,
    connect,
    console,
    print_json,
)
from elastane_common.prices import currency_code, price_micros
from elastane_proto.amounts import money_text, price_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane_proto.v1 import job_pb2


def register(app: typer.Typer) -> None:
    app.command("cost", rich_help_panel="Look")(cost)
    app.command("price", rich_help_panel="Operate")(price)


def price_option(name: str, text: str, **options: Any) -> Any:
    """Declare an option for a price per worker and hour."""
    return typer.Option(name, metavar="PRICE", help=text, show_default=False, **options)


def micros_of(text: str | None, option: str) -> int | None:
    """Parse the price given to an option, in millionths; None if not given. Raises typer.BadParameter."""
    try:
        return None if text is None else price_micros(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def checked_currency(text: str) -> str:
    """Return the currency given to an option, or "". Raises typer.BadParameter."""
    try:
        return currency_code(text) if text else ""
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--currency") from error


@command
def cost(
    job: JobArgument = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show what a job's workers have cost, and the savings compared with on-demand machines.

    The baseline is the price of the useful hours on on-demand machines, without reclaims and waiting.
    Replayed hours went into steps that had to be run again, idle hours into standing by and waiting.

    Examples: elastane cost; elastane cost train --json
    """
    from elastane_cli.views.plain import to_plain

    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(job))
    if as_json:
        print_json({"job": found.name, **to_plain(found.cost)})
        return
    out = console()
    for part in cost_parts(found):
        out.print(part)


@command
def price(
    job: JobArgument = None,
    spot: Annotated[
        str | None, price_option("--spot", "Price of a spot worker per hour; 0: unknown from now on.")
    ] = None,
    on_demand: Annotated[
        str | None,
        price_option("--on-demand", "Price of an on-demand worker per hour; 0: unknown from now on."),
    ] = None,
    currency: Annotated[
        str,
        typer.Option(
            "--currency",
            metavar="CODE",
            help="Three letters, such as USD; fixed once anything has been charged.",
            show_default="the job's",
        ),
    ] = "",
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="TYPE",
            help="Only of workers on this device type, as `elastane cost` names it.",
            show_default="all types without prices of their own",
        ),
    ] = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Set the prices of a job's workers from now on; earlier charges stay as they are.

    Examples: elastane price --spot 0.31; elastane price train --spot 0.31 --on-demand 0.9123 --currency EUR;
    elastane price train --device "NVIDIA L4" --spot 0.31
    """
    from elastane_cli.views.plain import to_plain

    micros = micros_of(spot, "--spot"), micros_of(on_demand, "--on-demand")
    if micros == (None, None) and not currency:
        raise typer.BadParameter("give a price: --spot, --on-demand, or both")
    if device is not None and not device.strip():
        raise typer.BadParameter("name a device type", param_hint="--device")
    if device and micros == (None, None):
        raise typer.BadParameter("give a price of the device type: --spot, --on-demand, or both")
    of_all = (None, None) if device else micros
    with connect(master, timeout) as client:
        changed = client.set_prices(
            client.only_job(job),
            spot_price_micros=of_all[0],
            on_demand_price_micros=of_all[1],
            currency=checked_currency(currency),
            devices=[device_price(device, *micros)] if device else [],
        )
    if as_json:
        print_json(to_plain(changed))
    else:
        typer.echo(f"{changed.name}: {prices_line(changed.cost)}")


def device_price(device: str, spot: int | None, on_demand: int | None) -> job_pb2.DevicePrice:
    """Return the prices of one device type in micros; None: unchanged."""
    from elastane_proto.v1 import job_pb2

    return job_pb2.DevicePrice(device_type=device, spot_price_micros=spot, on_demand_price_micros=on_demand)


def prices_line(cost: job_pb2.Cost) -> str:
    """Describe the current prices in words."""
    spot = price_text(cost.spot_price_micros, cost.currency)
    on_demand = price_text(cost.on_demand_price_micros, cost.currency)
    return f"a worker's hour costs: spot {spot}, on demand {on_demand}"


def stale_prices(cost: job_pb2.Cost, now: float) -> str:
    """Describe the prices that have expired at `now`, in seconds since the epoch; "": none."""
    named = [(device.device_type, device.expires) for device in cost.devices if device.HasField("expires")]
    if cost.HasField("expires"):
        named.insert(0, ("all device types", cost.expires))
    ages = [(name, now - expires.ToNanoseconds() / 1e9) for name, expires in named]
    stale = [f"{name} ({age / 60:.0f} min ago)" for name, age in ages if age >= 0]
    return f"prices have expired, the last ones are kept: {', '.join(stale)}" if stale else ""


def _device_table(cost: job_pb2.Cost) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("DEVICE", "SPOT H", "ON DEMAND H", "COST", "SPOT PRICE", "ON DEMAND PRICE"):
        table.add_column(column, justify="left" if column == "DEVICE" else "right")
    for device in cost.devices:
        table.add_row(
            escape(device.device_type) or "not known",
            f"{device.spot_worker_seconds / 3600:.2f}",
            f"{device.on_demand_worker_seconds / 3600:.2f}",
            money_text(device.spent_micros, cost.currency),
            price_text(device.spot_price_micros, cost.currency),
            price_text(device.on_demand_price_micros, cost.currency),
        )
    return table


def cost_line(cost: job_pb2.Cost) -> str:
    """Describe spending and savings in one line; empty if no price was ever known."""
    known = cost.spot_price_micros or cost.on_demand_price_micros or cost.spent_micros
    if not known:
        return ""
    text = f"cost {money_text(cost.spent_micros, cost.currency)}"
    if cost.HasField("savings"):
        text += f", on demand {money_text(cost.on_demand_micros, cost.currency)}, saved {cost.savings:.1%}"
    if cost.unpriced_seconds:
        text += f"; {cost.unpriced_seconds / 3600:.2f} h without a known price are not in it"
    return f"{text}; {prices_line(cost)}"


def cost_parts(job: job_pb2.Job) -> list[RenderableType]:
    """Return the lines and tables that `elastane cost` prints."""
    from rich.markup import escape
    from rich.table import Table

    from elastane_cli.views.jobs import phase_name

    cost = job.cost
    parts: list[RenderableType] = [
        f"[bold]{escape(job.name)}[/]  {phase_name(job).replace('_', ' ')}; {prices_line(cost)}"
    ]
    sums = Table(box=None, show_header=False, pad_edge=False)
    sums.add_row("spent", money_text(cost.spent_micros, cost.currency), "")
    if cost.HasField("savings"):
        without = "the useful hours, without reclaims"
        sums.add_row("on demand", money_text(cost.on_demand_micros, cost.currency), without)
        sums.add_row("saved", money_text(cost.saved_micros, cost.currency), f"{cost.savings:.1%}")
    parts.append(sums)
    hours = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("WORKERS", "HOURS", "SHARE", "COST"):
        hours.add_column(column, justify="left" if column == "WORKERS" else "right")
    useful = cost.spent_micros - cost.replayed_micros - cost.idle_micros
    rows = (
        ("useful", cost.useful_seconds, useful),
        ("replayed", cost.replayed_seconds, cost.replayed_micros),
        ("idle", cost.idle_seconds, cost.idle_micros),
        ("all", cost.worker_seconds, cost.spent_micros),
    )
    for name, seconds, micros in rows:
        share = f"{seconds / cost.worker_seconds:.1%}" if cost.worker_seconds else "-"
        hours.add_row(name, f"{seconds / 3600:.2f}", share, money_text(micros, cost.currency))
    parts.append(hours)
    spot, on_demand = cost.spot_worker_seconds / 3600, cost.on_demand_worker_seconds / 3600
    parts.append(f"{spot:.2f} h on spot, {on_demand:.2f} h on demand")
    if cost.devices:
        parts.append(_device_table(cost))
    if stale := stale_prices(cost, time.time()):
        parts.append(f"[yellow]{escape(stale)}[/]")
    if cost.unpriced_seconds:
        unpriced = cost.unpriced_seconds / 3600
        parts.append(
            f"{unpriced:.2f} h had no known price and are not in the cost: set it with elastane price"
        )
    return parts
