// What Grafana 11.6 accepts as a dashboard, from the types of @grafana/schema: a dashboard that is assigned to `Shape` as a
// literal does not compile if a field is unknown, missing or has another type.
import type { DashboardCursorSync, DataQuery, DataSourceRef, VariableHide, VariableRefresh, VariableSort } from "@grafana/schema";
import type * as raw from "@grafana/schema/dist/esm/raw/dashboard/x/dashboard_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as timeseries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Numbers = DashboardCursorSync | VariableHide | VariableRefresh | VariableSort;

/** A type as JSON has it: the values of enumerations instead of their members. */
type Json<T> = T extends Numbers
  ? T
  : T extends string
    ? `${T}`
    : T extends number | boolean | null | undefined
      ? T
      : T extends readonly (infer E)[]
        ? Json<E>[]
        : T extends object
          ? { [K in keyof T]: Json<T[K]> }
          : T;

/** A query of the data source Prometheus, whose own types are in no package without a user interface. */
interface Query extends DataQuery {
  datasource: DataSourceRef;
  expr: string;
  refId: string;
  legendFormat: string;
  instant: boolean;
  range: boolean;
  editorMode: "code" | "builder";
  format?: "time_series" | "table" | "heatmap";
}

type Field<C> = Omit<raw.FieldConfig, "custom" | "links"> & { custom?: C; links?: { title: string; url: string; targetBlank?: boolean }[] };
type Panel<Type extends string, Options, Custom> = Omit<raw.Panel, "type" | "options" | "targets" | "fieldConfig" | "links"> & {
  type: Type;
  options?: Options;
  targets: Query[];
  fieldConfig: Omit<raw.FieldConfigSource, "defaults"> & { defaults: Field<Custom> };
};
type AnyPanel =
  | Panel<"stat", stat.Options, never>
  | Panel<"table", table.Options, Partial<table.FieldConfig> & { filterable?: boolean }>
  | Panel<"timeseries", timeseries.Options, timeseries.FieldConfig>
  | (Omit<raw.RowPanel, "panels"> & { panels: never[] });

export type Shape = Json<Omit<raw.Dashboard, "panels"> & { panels: AnyPanel[] }>;
